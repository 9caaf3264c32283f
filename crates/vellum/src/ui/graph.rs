//! Lines beside a list of snapshots that show which came from which: [`HistoryLanes`] as text.

use vellum_library::HistoryLanes;

/// Draws one list.
pub struct HistoryGraph<T> {
    lanes: HistoryLanes<T>,
}

impl<T> Default for HistoryGraph<T> {
    fn default() -> Self {
        Self { lanes: HistoryLanes::default() }
    }
}

/// What to draw for one entry.
#[derive(Debug, PartialEq, Eq)]
pub struct GraphRows {
    /// Lines above the entry, in which lanes meet.
    pub before: Vec<String>,
    /// What stands in front of the entry.
    pub node: String,
    /// Lines below the entry, in which lanes part.
    pub after: Vec<String>,
}

impl<T: Copy + PartialEq> HistoryGraph<T> {
    /// The next entry and its parents, as far as they will be listed too.
    pub fn add_entry(&mut self, id: T, parents: &[T]) -> GraphRows {
        let step = self.lanes.add_entry(id, parents);
        let mut used = step.occupied;
        let mut before = Vec::with_capacity(step.ends.len());
        // From the right, since a lane that has ended is not drawn in the rows below.
        for end in step.ends.iter().rev() {
            before.push(bridge_row(&used, step.column, *end, '╯'));
            set_lane(&mut used, *end, false);
        }
        let node = node_row(&used, step.column);
        set_lane(&mut used, step.column, step.continues);
        let mut after = Vec::with_capacity(step.forks.len());
        for fork in &step.forks {
            let end = match fork.is_new {
                true => '╮',
                false if fork.column > step.column => '┤',
                false => '├',
            };
            set_lane(&mut used, fork.column, true);
            after.push(bridge_row(&used, step.column, fork.column, end));
        }
        GraphRows { before, node, after }
    }
}

fn set_lane(used: &mut Vec<bool>, lane: usize, is_used: bool) {
    if used.len() <= lane {
        used.resize(lane + 1, false);
    }
    used[lane] = is_used;
}

fn node_row(used: &[bool], node: usize) -> String {
    let marks = used.iter().enumerate().map(|(at, is_used)| match is_used {
        _ if at == node => '●',
        true => '│',
        false => ' ',
    });
    join_with_gaps(marks, ' ').trim_end().into()
}

/// A line that connects two lanes; `end` is drawn at `other`.
fn bridge_row(used: &[bool], lane: usize, other: usize, end: char) -> String {
    let left = lane.min(other);
    let right = lane.max(other);
    let mut line = String::new();
    for (at, is_used) in used.iter().enumerate() {
        let within = at > left && at < right;
        line.push(match is_used {
            _ if at == other => end,
            _ if at == lane => {
                if lane < other {
                    '├'
                } else {
                    '┤'
                }
            }
            true if within => '┼',
            false if within => '─',
            true => '│',
            false => ' ',
        });
        line.push(if at >= left && at < right { '─' } else { ' ' });
    }
    line.trim_end().into()
}

fn join_with_gaps(marks: impl Iterator<Item = char>, gap: char) -> String {
    let mut line = String::new();
    for mark in marks {
        line.push(mark);
        line.push(gap);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(entries: &[(u32, &[u32])]) -> Vec<String> {
        let mut graph = HistoryGraph::default();
        let mut lines = Vec::new();
        for (id, parents) in entries {
            let rows = graph.add_entry(*id, parents);
            lines.extend(rows.before);
            lines.push(format!("{} {id}", rows.node));
            lines.extend(rows.after);
        }
        lines
    }

    #[test]
    fn one_line_is_straight() {
        assert_eq!(draw(&[(3, &[2]), (2, &[1]), (1, &[])]), ["● 3", "● 2", "● 1"]);
    }

    #[test]
    fn forks_meet_where_they_parted() {
        let lines = draw(&[(5, &[3]), (4, &[2]), (3, &[2]), (2, &[1]), (1, &[])]);
        assert_eq!(lines, ["● 5", "│ ● 4", "● │ 3", "├─╯", "● 2", "● 1"]);
    }

    #[test]
    fn merges_have_several_parents() {
        let lines = draw(&[(4, &[2, 3]), (3, &[1]), (2, &[1]), (1, &[])]);
        assert_eq!(lines, ["● 4", "├─╮", "│ ● 3", "● │ 2", "├─╯", "● 1"]);
    }

    #[test]
    fn three_forks_and_a_line_that_ends() {
        let lines = draw(&[(9, &[]), (5, &[1]), (4, &[1]), (3, &[1]), (1, &[])]);
        assert_eq!(lines, ["● 9", "● 5", "│ ● 4", "│ │ ● 3", "├─┼─╯", "├─╯", "● 1"]);
    }
}
