//! `vellum sync` and names that look the same: one letter composed or decomposed, large or small.

use crate::other_host::Host;

/// Names that some filesystems take for one: the forms of a letter with an accent, and of a letter.
const FORMS: [[&str; 2]; 3] =
    [["caf\u{e9}", "cafe\u{301}"], ["\u{d55c}", "\u{1112}\u{1161}\u{11ab}"], ["Name", "name"]];

/// Names are bytes: neither form stands for the other, so neither is written over, deleted or renamed for it.
#[test]
fn both_forms_of_a_name_stand_side_by_side() {
    let host = Host::new();
    let world = &host.world;
    for forms in FORMS {
        for form in forms {
            world.write(&format!("src/{form}"), form);
            world.write(&format!("src/dir {form}/f"), form);
        }
    }
    for (to, from) in [("there".to_owned(), "there/".to_owned()), (host.at("far"), host.at("far/"))] {
        host.sync(&["-a", "--delete", "src/", &to]).ok();
        host.sync(&["-a", "--delete", &from, "back"]).ok();
        host.assert_equal("src", "back");
        host.sync(&["-ac", "--delete", "--detect-renames", "src/", &to]).ok().says("Nothing to do");
    }
    // One goes, and the other stays.
    for [one, other] in FORMS {
        world.remove(&format!("src/{one}"));
        host.sync(&["-a", "--delete", "src/", "there"]).ok();
        host.sync(&["-a", "--delete", "src/", &host.at("far")]).ok();
        for side in ["there", "far"] {
            assert!(!world.has(&format!("{side}/{one}")));
            assert_eq!(world.read(&format!("{side}/{other}")), other);
        }
    }
}

#[test]
fn both_ways_an_edit_of_one_form_leaves_the_other_alone() {
    let host = Host::new();
    let world = &host.world;
    for [one, other] in FORMS {
        world.write(&format!("a/{one}"), "agreed");
        world.write(&format!("b/{other}"), "agreed too");
    }
    host.both(&[]).ok();
    for [one, other] in FORMS {
        world.write(&format!("b/{one}"), "edited there");
        world.remove(&format!("a/{other}"));
    }
    host.both(&["--force-delete"]).ok();
    for side in ["a", "b"] {
        for [one, other] in FORMS {
            assert_eq!(world.read(&format!("{side}/{one}")), "edited there");
            assert!(!world.has(&format!("{side}/{other}")));
        }
    }
    host.both(&[]).ok().says("Nothing to do");
}
