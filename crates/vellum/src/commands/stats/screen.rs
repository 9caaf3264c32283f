//! The whole terminal, with every kind of request. Plain ANSI: it is drawn anew each time, and what was there before is
//! there again when it ends.

use std::path::Path;

use vellum_volume::tree::show;

use super::figures::{Figures, Rate, bytes, count, latency};
use crate::error::{CliError, Result};
use crate::ui::Ui;
use crate::ui::table::{Align, Cell, Table};

/// The other screen, without a cursor; and back.
const OPEN: &[u8] = b"\x1b[?1049h\x1b[?25l";
const CLOSE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// From the top; and what was there below is gone.
const HOME: &[u8] = b"\x1b[H";
const REST: &[u8] = b"\x1b[J";

/// Lines of a terminal that does not say how many it has.
const LINES: usize = 24;

/// The terminal, until dropped.
pub struct Screen<'a> {
    ui: &'a Ui,
}

impl<'a> Screen<'a> {
    /// Takes the terminal.
    pub fn open(ui: &'a Ui) -> Result<Self> {
        if !ui.out_is_terminal() {
            return Err(CliError::usage("there is no terminal to draw on", "leave out --tui"));
        }
        ui.bytes(OPEN)?;
        Ok(Self { ui })
    }

    /// Draws what happened.
    pub fn draw(&self, mountpoint: &Path, figures: &Figures) -> Result<()> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let lines = size.map_or(LINES, |size| usize::from(size.ws_row).max(4));
        self.ui.bytes(HOME)?;
        let mut drawn = page(self.ui, mountpoint, figures);
        drawn.truncate(lines - 1);
        for line in drawn {
            self.ui.line(format!("{line}\x1b[K"))?;
        }
        self.ui.bytes(REST)?;
        self.ui.flush()
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = self.ui.bytes(CLOSE).and_then(|()| self.ui.flush());
    }
}

fn page(ui: &Ui, mountpoint: &Path, figures: &Figures) -> Vec<String> {
    let style = ui.style;
    let hits = figures.cache_hits.map_or("-".into(), |hits| format!("{hits:.1} %"));
    let mut lines = vec![
        style.bold(&format!("vellum {}", show(mountpoint.as_os_str().as_encoded_bytes()))),
        String::new(),
        format!(
            "process  cpu {:.1} %   memory {}   write log {}   metadata {}",
            figures.cpu_percent,
            bytes(figures.memory as f64),
            bytes(figures.log as f64),
            bytes(figures.buffer as f64)
        ),
        format!("mount    read {}/s   write {}/s", bytes(figures.read), bytes(figures.written)),
        format!("cache    hits {hits}   holds {}", bytes(figures.cache as f64)),
        format!("store    received {}/s   sent {}/s", bytes(figures.received), bytes(figures.sent)),
        String::new(),
    ];
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right]);
    let head = ["", "a second", "took"];
    table.row(head.map(|word| Cell::painted(word, |text| style.dim(text))));
    let mut row =
        |name: &str, rate: Rate| table.row([name.into(), count(rate.rate).into(), latency(rate).into()]);
    row("transactions", figures.transactions);
    row("object get", figures.get);
    row("object put", figures.put);
    row("object delete", figures.delete);
    row("requests", figures.fuse);
    for (kind, rate) in &figures.operations {
        row(&format!("  {kind}"), *rate);
    }
    lines.extend(table.lines());
    lines
}
