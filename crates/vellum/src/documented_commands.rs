//! The examples of the documents: each command of Vellum in a block of a document is understood by the parser.
//!
//! Those that are run, with what they print, have tests of their own in `tests/it`: the README, merging, trying, settings.

use std::fs;
use std::path::Path;

use clap::Parser;

use crate::cli::CommandLine;

/// A block of a document between two fences.
struct ExampleBlock {
    document: String,
    language: String,
    lines: Vec<String>,
}

/// The blocks of the README, the contributors' page and all documents.
fn read_blocks() -> Vec<ExampleBlock> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = listed.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    paths.extend(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    paths.iter().flat_map(|path| split_blocks(path)).collect()
}

fn split_blocks(path: &Path) -> Vec<ExampleBlock> {
    let text = fs::read_to_string(path).unwrap();
    let document = path.file_name().unwrap().to_str().unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let block = lines.by_ref().take_while(|line| line.trim() != "```").map(String::from).collect();
            blocks.push(ExampleBlock { document: document.into(), language: language.into(), lines: block });
        }
    }
    blocks
}

impl ExampleBlock {
    fn is_shell(&self) -> bool {
        matches!(&*self.language, "" | "sh" | "console" | "bash")
    }

    /// What a shell is given: the lines with a prompt, or all of a block that has none.
    fn typed_lines(&self) -> Vec<&str> {
        let filled = || self.lines.iter().map(String::as_str).filter(|line| !line.trim().is_empty());
        if filled().any(|line| line.starts_with("$ ")) {
            filled().filter_map(|line| line.strip_prefix("$ ")).collect()
        } else if filled().all(|line| line.starts_with("# ")) {
            filled().filter_map(|line| line.strip_prefix("# ")).collect()
        } else {
            filled().collect()
        }
    }

    /// The commands of Vellum in it, as words.
    fn commands(&self) -> Vec<Vec<String>> {
        let split = self.typed_lines().into_iter().flat_map(split_line);
        split.filter_map(keep_own_command).collect()
    }
}

/// The commands of a line of a shell, without comments and redirections.
fn split_line(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut is_target = false;
    let mut chars = line.chars().peekable();
    let finish = |word: &mut Option<String>, is_target: &mut bool, commands: &mut Vec<Vec<String>>| {
        if let Some(word) = word.take()
            && !std::mem::take(is_target)
        {
            commands.last_mut().unwrap().push(word);
        }
    };
    while let Some(char) = chars.next() {
        match char {
            quote @ ('\'' | '"') => {
                word.get_or_insert_default().extend(chars.by_ref().take_while(|char| *char != quote));
            }
            '#' if word.is_none() => break,
            ' ' | '\t' => finish(&mut word, &mut is_target, &mut commands),
            '>' | '<' => {
                finish(&mut word, &mut is_target, &mut commands);
                is_target = chars.peek() != Some(&'(');
            }
            '|' | '&' | ';' | '(' | ')' => {
                finish(&mut word, &mut is_target, &mut commands);
                commands.push(Vec::new());
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    finish(&mut word, &mut is_target, &mut commands);
    commands
}

/// The command, without variables in front, if it is one of Vellum.
fn keep_own_command(words: Vec<String>) -> Option<Vec<String>> {
    let is_setting = |word: &String| word.split_once('=').is_some_and(|(name, _)| is_variable(name));
    let words: Vec<_> = words.into_iter().skip_while(|word| word == "sudo" || is_setting(word)).collect();
    (words.first()? == "vellum").then_some(words)
}

fn is_variable(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}

#[test]
fn each_example_of_the_documents_is_understood() {
    let blocks = read_blocks();
    let mut count = 0;
    let mut wrong = Vec::new();
    for block in blocks.iter().filter(|block| block.is_shell()) {
        for command in block.commands() {
            count += 1;
            if let Err(error) = CommandLine::try_parse_from(&command) {
                wrong.push(format!("{}: {}\n{error}", block.document, command.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 120, "{count}");
    // A language that nobody looks at is named here. What docs/agents.md has as JSON is tried by tests/mcp, and
    // docs/python.md by tests/python.
    let others = blocks.iter().filter(|block| !block.is_shell()).map(|block| &*block.language);
    let unknown: Vec<_> =
        others.filter(|language| !["json", "python", "rust", "text", "toml"].contains(language)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn lines_are_split_as_a_shell_does() {
    let split = |line| split_line(line).into_iter().filter_map(keep_own_command).collect::<Vec<_>>();
    let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
    assert_eq!(split("A=b vellum status # vellum x"), [words("vellum status")]);
    assert_eq!(split("cd x && vellum ls | sort > vellum"), [words("vellum ls")]);
    assert_eq!(split("source <(vellum completion bash)"), [words("vellum completion bash")]);
    assert_eq!(
        split("vellum a 'b c#d' \"\" e=f"),
        [["vellum", "a", "b c#d", "", "e=f"].map(String::from).to_vec()]
    );
    assert_eq!(split("echo vellum; cat > vellum"), Vec::<Vec<String>>::new());
}
