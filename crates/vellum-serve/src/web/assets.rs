//! The files of the page, as they stand in `page/`.

use crate::web::answer::{Answer, ApiError, asset_answer};

/// A file of the page.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    content: &'static [u8],
}

macro_rules! assets {
    ($($name:literal: $content_type:expr),+ $(,)?) => {
        const ASSETS: &[Asset] = &[$(Asset {
            name: $name,
            content_type: $content_type,
            // In the program itself: it needs no files beside it, and the page always fits the API.
            content: include_bytes!(concat!("../../page/", $name)),
        }),+];
    };
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";

assets! {
    "index.html": HTML,
    "style.css": STYLE,
    "icon.svg": SVG,
    "actions.js": SCRIPT,
    "app.js": SCRIPT,
    "api.js": SCRIPT,
    "compare.js": SCRIPT,
    "dom.js": SCRIPT,
    "files.js": SCRIPT,
    "format.js": SCRIPT,
    "graph.js": SCRIPT,
    "health.js": SCRIPT,
    "history.js": SCRIPT,
    "list.js": SCRIPT,
    "live.js": SCRIPT,
    "search.js": SCRIPT,
    "viewer.js": SCRIPT,
}

/// The file with a name.
pub fn answer_asset(name: &str) -> Result<Answer, ApiError> {
    // Looked up in a fixed list: no path of a request ever reaches the disk.
    let found = ASSETS.iter().find(|asset| asset.name == name);
    let missing =
        || ApiError::new(hyper::StatusCode::NOT_FOUND, "not_found", "there is nothing at this address");
    let asset = found.ok_or_else(missing)?;
    let tag = format!("\"{}\"", &blake3::hash(asset.content).to_hex()[..32]);
    Ok(asset_answer(asset.content_type, asset.content, &tag))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::path::Path;

    use super::*;

    /// Most bytes of scripts and styles, as they stand: the page has to stay small enough to be read.
    const PAGE_MAX: usize = 120 << 10;

    #[test]
    fn every_file_of_the_page_is_served() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let mut files: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let mut served: Vec<_> = ASSETS.iter().map(|asset| asset.name).collect();
        served.sort_unstable();
        assert_eq!(files, served);
    }

    #[test]
    fn the_page_stays_small_and_makes_no_markup_of_text() {
        let is_code = |asset: &&Asset| [SCRIPT, STYLE].contains(&asset.content_type);
        let code: usize = ASSETS.iter().filter(is_code).map(|asset| asset.content.len()).sum();
        assert!(code <= PAGE_MAX, "{code} bytes of scripts and styles");
        for asset in ASSETS.iter().filter(|asset| asset.content_type == SCRIPT) {
            let text = std::str::from_utf8(asset.content).unwrap();
            assert!(text.lines().count() <= 600, "{} is too long", asset.name);
            for word in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"]
            {
                assert!(!text.contains(word), "{} has {word}", asset.name);
            }
        }
    }
}
