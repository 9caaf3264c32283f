//! What questions are answered with.

use std::fs;

use serde_json::json;
use vellum_library::Checkout;

use crate::stand::Stand;

#[test]
fn the_volume_and_its_history() {
    let stand = Stand::start();
    let volume = stand.ask("volume").expect(200).json();
    assert_eq!((&volume["version"], &volume["worktree"]), (&json!(1), &json!("main")));
    assert_eq!(volume["worktrees"], json!([{ "worktree": "main", "head": stand.second }]));
    let rows = stand.ask("history/rows?worktree=main").expect(200).json();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 2);
    assert_eq!(rows["rows"][0][0], stand.second.as_str());
    assert_eq!(rows["rows"][0][3], json!([[null, 0, 0]]));
    assert_eq!(rows["rows"][1][3], json!([[0, null, 0]]));
    let page = stand.ask("history?limit=1").expect(200).json();
    assert_eq!(page["snapshots"][0]["note"], "second");
    assert_eq!((&page["more"], &page["lanes"]), (&json!(true), &json!([[0, [[null, 0, 0]]]])));
    let after = page["after"].as_str().unwrap();
    let rest = stand.ask(&format!("history?limit=1&after={after}")).expect(200).json();
    assert_eq!((&rest["snapshots"][0]["id"], &rest["more"]), (&json!(stand.first), &json!(false)));
    stand.ask(&format!("history?limit=1&worktree=main&after={after}")).expect(400);
    stand.ask("history?after=AAAA").expect(400);
    stand.ask("history?worktree=other").expect(404);
    let found = stand.ask("history?path=gone&worktree=main").expect(200).json();
    assert_eq!(found["snapshots"].as_array().unwrap().len(), 2);
    assert_eq!(stand.ask("history?grep=FIRST").json()["snapshots"][0]["id"], stand.first.as_str());
    let shown = stand.ask(&format!("snapshots/{}", stand.first)).expect(200).json();
    assert_eq!(shown["snapshot"]["note"], "first <script>alert(1)</script>");
    stand.ask(&format!("snapshots/{}", "0".repeat(64))).expect(404);
}

#[test]
fn directories_files_and_their_versions() {
    let stand = Stand::start();
    let tree = stand.ask(&format!("tree/{}?limit=2", stand.second)).expect(200).json();
    assert_eq!((&tree["total"], &tree["entries"][0]["path"]), (&json!(3), &json!("bytes")));
    let after = tree["after"].as_str().unwrap();
    let rest = stand.ask(&format!("tree/{}?limit=2&after={after}", stand.second)).expect(200).json();
    assert_eq!((&rest["entries"][0]["path"], &rest["more"]), (&json!("link"), &json!(false)));
    let sorted = stand.ask(&format!("tree/{}?sort=size&limit=1", stand.second)).expect(200).json();
    assert_eq!(sorted["entries"][0]["size"], 4000);
    let versions = stand.ask(&format!("versions/{}?path=dir/text", stand.second)).expect(200).json();
    let list = versions["versions"].as_array().unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!((&list[0]["first"], &list[1]["last"]), (&json!(stand.second), &json!(stand.first)));
    assert_ne!(list[0]["content"], list[1]["content"]);
    let entry = stand.ask(&format!("entry/{}?path=dir/text", stand.first)).expect(200);
    assert_eq!(entry.json()["content"], list[1]["content"]);
    let tag = format!("If-None-Match: {}", entry.header("etag").unwrap());
    let line = format!("GET /api/v1/entry/{}?path=dir/text", stand.first);
    assert!(stand.request(&line, &[&stand.host(), &stand.bearer(), &tag], b"").expect(304).body.is_empty());
    stand.ask(&format!("entry/{}?path=gone", stand.second)).expect(404);
}

#[test]
fn differences_and_contents() {
    let stand = Stand::start();
    let (a, b) = (&stand.first, &stand.second);
    let found = stand.ask(&format!("compare?a={a}&b={b}")).expect(200).json();
    assert_eq!(found["counts"], json!({ "added": 1, "deleted": 1, "modified": 1, "renamed": 0 }));
    let page = stand.ask(&format!("compare?a={a}&b={b}&limit=2")).expect(200).json();
    let after = page["after"].as_str().unwrap();
    let rest = stand.ask(&format!("compare?a={a}&b={b}&limit=2&after={after}")).expect(200).json();
    assert_eq!((&rest["changes"][0], &rest["more"]), (&found["changes"][2], &json!(false)));
    let within = stand.ask(&format!("compare?a={a}&b={b}&path=dir")).expect(200).json();
    assert_eq!(within["changes"].as_array().unwrap().len(), 1);
    let text = stand.ask(&format!("text?a={a}&b={b}&path=dir/text")).expect(200).json();
    let lines = json!([[" ", "one"], ["-", "two"], ["+", "2"], [" ", "three"]]);
    assert_eq!(text["hunks"], json!([{ "old": 1, "new": 1, "lines": lines }]));
    assert_eq!(stand.ask(&format!("text?a={a}&b={b}&path=bytes")).json()["binary"], true);
    stand.ask(&format!("text?a={a}&b={b}&path=nothing")).expect(404);
    let line = format!("GET /api/v1/content/{b}?path=bytes");
    let part = |range: &str| stand.request(&line, &[&stand.host(), &stand.bearer(), range], b"");
    let reply = part("Range: bytes=2-4").expect(206);
    assert_eq!(
        (reply.body.as_slice(), reply.header("content-range")),
        (&[2, 255, 0][..], Some("bytes 2-4/4000"))
    );
    part("Range: bytes=4000-").expect(416);
}

#[test]
fn snapshots_made_meanwhile_are_seen() {
    let stand = Stand::start();
    stand.ask("history/rows").expect(200);
    let checkout = Checkout::open(stand.data()).unwrap();
    fs::write(stand.data().join("new"), "new").unwrap();
    let third = checkout.create_snapshot("third").unwrap().id.to_string();
    // By a program that has not listed it yet.
    let versions = stand.ask(&format!("versions/{third}?path=new")).expect(200).json();
    assert_eq!(versions["versions"][0]["first"], third.as_str());
    assert_eq!(stand.ask("history/rows").expect(200).json()["rows"][0][0], third.as_str());
    assert_eq!(stand.ask("volume").json()["worktrees"][0]["head"], third.as_str());
}
