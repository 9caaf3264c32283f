//! Addresses of requests to the page and its API: no path that passes leads out of a tree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_serve::web::query::check_path;
use vellum_serve::web::route::{ApiRequest, Route, parse_route};

fuzz_target!(|address: &str| {
    let (path, query) = address.split_once('?').unwrap_or((address, ""));
    for method in ["GET", "POST"] {
        let Ok(Route::Api(asked)) = parse_route(method, path, query) else { continue };
        let paths = match asked {
            ApiRequest::Tree(asked) => vec![asked.at.path],
            ApiRequest::Entry(place) | ApiRequest::Versions(place, _) | ApiRequest::Content(place) => vec![place.path],
            ApiRequest::Compare(asked) => vec![asked.path],
            ApiRequest::Text(asked) => [Some(asked.path), asked.old_path].into_iter().flatten().collect(),
            ApiRequest::History(asked) => asked.path.into_iter().collect(),
            ApiRequest::Volume
            | ApiRequest::HistoryRows(_)
            | ApiRequest::Snapshot(_)
            | ApiRequest::NewTicket
            | ApiRequest::Approvals
            | ApiRequest::AnswerApproval(_) => Vec::new(),
        };
        for path in paths {
            assert_eq!(check_path(&path), Ok(()));
            assert!(!path.starts_with(b"/") && !path.split(|byte| *byte == b'/').any(|name| name == b".."));
        }
    }
});
