//! `vellum completion`

use crate::world::World;

#[test]
fn every_shell_has_a_script() {
    let world = World::empty();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        world.run(&["completion", shell]).ok().says("snapshot").says("restore");
    }
    world.run(&["completion", "tcsh"]).code(3);
}
