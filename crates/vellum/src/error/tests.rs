//! The codes of failures, against the document.

use super::*;

/// Whether a kind is in [`ErrorKind::ALL`], at the place that its number in the sync protocol says.
fn is_listed(kind: ErrorKind) -> bool {
    let place = match kind {
        ErrorKind::NotFound => 0,
        ErrorKind::Conflict => 1,
        ErrorKind::Corrupt => 2,
        ErrorKind::Denied => 3,
        ErrorKind::NoSpace => 4,
        ErrorKind::Unsupported => 5,
        ErrorKind::Usage => 6,
        ErrorKind::Interrupted => 7,
        ErrorKind::Io => 8,
    };
    ErrorKind::ALL.get(place) == Some(&kind)
}

#[test]
fn the_documents_list_each_code_once_and_no_other() {
    let text = include_str!("../../../../docs/json.md");
    let (_, table) = text.split_once("\n| `code` | exit code |").expect("the table of codes");
    let rows = table.split("\n\n").next().unwrap_or_default().lines().skip(2);
    let listed: Vec<_> =
        rows.map(|row| row.split('|').map(str::trim).skip(1).take(2).collect::<Vec<_>>().join(" ")).collect();
    let codes: Vec<_> = ErrorKind::ALL
        .into_iter()
        .inspect(|kind| assert!(is_listed(*kind), "{kind:?}"))
        .map(|kind| {
            let exit = match kind {
                ErrorKind::Usage => EXIT_USAGE.to_string(),
                ErrorKind::Interrupted => "130, 143".into(),
                _ => EXIT_FAILED.to_string(),
            };
            format!("`{}` {exit}", vellum_json::error_code(kind))
        })
        .collect();
    assert_eq!(listed, codes);
    assert!(ErrorKind::ALL.into_iter().all(|kind| parse_error_code(vellum_json::error_code(kind)) == kind));
}
