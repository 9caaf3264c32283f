//! What people do in a directory, done in a mount: projects built, and what was built run.

use std::fs;

use crate::mounting::Mount;
use crate::world::World;

#[test]
fn a_rust_project_is_built_and_run() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    fs::create_dir_all(mount.at("project/src")).unwrap();
    let write = |name: &str, text: &str| fs::write(mount.at("project").join(name), text).unwrap();
    write("Cargo.toml", "[package]\nname = \"tool\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n");
    write("build.rs", "fn main() { println!(\"cargo:rustc-env=FROM_BUILD=42\"); }");
    write("src/lib.rs", "pub mod sums;\n");
    write("src/sums.rs", "pub fn sum(numbers: &[u64]) -> u64 { numbers.iter().sum() }\n");
    write(
        "src/main.rs",
        "fn main() { println!(\"{} {}\", tool::sums::sum(&[1, 2, 3]), env!(\"FROM_BUILD\")); }",
    );
    let build =
        "cd project; env -u CARGO_TARGET_DIR -u RUSTFLAGS CARGO_INCREMENTAL=1 cargo build --offline -q";
    mount.sh(build);
    assert_eq!(mount.sh("project/target/debug/tool"), "6 42\n");
    write("src/sums.rs", "pub fn sum(numbers: &[u64]) -> u64 { numbers.iter().sum::<u64>() * 2 }\n");
    mount.sh(build);
    assert_eq!(mount.sh("project/target/debug/tool"), "12 42\n");
    mount.umount().ok();
    mount.again(&[]).ok();
    // By their times nothing changed.
    let again = mount.sh(&format!("{} 2>&1", build.replace(" -q", " -v")));
    assert!(again.contains("Fresh tool") && !again.contains("Compiling"), "{again}");
    assert_eq!(mount.sh("project/target/debug/tool"), "12 42\n");
}

#[test]
fn a_go_project_is_built_and_run() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    fs::create_dir_all(mount.at("project/words")).unwrap();
    let write = |name: &str, text: &str| fs::write(mount.at("project").join(name), text).unwrap();
    write("go.mod", "module example.com/tool\n\ngo 1.21\n");
    write(
        "words/words.go",
        "package words\n\nimport \"sort\"\n\nfunc Sorted(list []string) []string { sort.Strings(list); return list }\n",
    );
    write(
        "main.go",
        "package main\n\nimport (\n\t\"fmt\"\n\t\"example.com/tool/words\"\n)\n\nfunc main() { fmt.Println(words.Sorted([]string{\"b\", \"a\"})) }\n",
    );
    let build =
        "export HOME=$PWD GOCACHE=$PWD/cache GOPATH=$PWD/path GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local
        cd project; go build -o ../tool .";
    mount.sh(build);
    assert_eq!(mount.sh("./tool"), "[a b]\n");
    mount.umount().ok();
    mount.again(&[]).ok();
    mount.sh(build);
    assert_eq!(mount.sh("./tool"), "[a b]\n");
}
