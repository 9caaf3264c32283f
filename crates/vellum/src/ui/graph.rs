//! Lines beside a list of snapshots that show which came from which.
//!
//! Invariant: the list has no snapshot before its children. Each open line of descent has a lane; a lane waits for
//! the next snapshot of its line.

/// Draws one list.
pub struct HistoryGraph<T> {
    lanes: Vec<Option<T>>,
}

impl<T> Default for HistoryGraph<T> {
    fn default() -> Self {
        Self { lanes: Vec::new() }
    }
}

/// What to draw for one entry.
#[derive(Debug, PartialEq, Eq)]
pub struct GraphRows {
    /// Whole lines before it: lanes that meet in it.
    pub before: Vec<String>,
    /// In front of the entry itself.
    pub node: String,
    /// Whole lines after it: lanes that part from it.
    pub after: Vec<String>,
}

impl<T: Copy + PartialEq> HistoryGraph<T> {
    /// The next entry and its parents, as far as they will be listed too.
    pub fn add_entry(&mut self, id: T, parents: &[T]) -> GraphRows {
        let mut waiting =
            self.lanes.iter().enumerate().filter(|(_, lane)| **lane == Some(id)).map(|(at, _)| at);
        let first = waiting.next();
        let others: Vec<usize> = waiting.collect();
        let lane = first.unwrap_or_else(|| self.allocate_lane(id));
        let mut before = Vec::with_capacity(others.len());
        // From the right, since a lane that has ended is not drawn in the rows below.
        for other in others.into_iter().rev() {
            before.push(self.bridge_row(lane, other, '╯'));
            self.set_lane(other, None);
        }
        let node = self.node_row(lane);
        // The first parent continues the lane, so that a worktree's own line stays straight through merges.
        self.set_lane(lane, parents.first().copied());
        let mut after = Vec::new();
        for parent in parents.iter().skip(1) {
            let known = self.lanes.iter().position(|waiting| *waiting == Some(*parent));
            let (other, end) = match known {
                Some(other) => (other, if other > lane { '┤' } else { '├' }),
                None => (self.allocate_lane(*parent), '╮'),
            };
            after.push(self.bridge_row(lane, other, end));
        }
        // Lanes at the right end that wait for nothing would only widen the lines.
        while let Some(None) = self.lanes.last() {
            self.lanes.pop();
        }
        GraphRows { before, node, after }
    }

    fn set_lane(&mut self, lane: usize, waiting: Option<T>) {
        if let Some(place) = self.lanes.get_mut(lane) {
            *place = waiting;
        }
    }

    /// A lane that waits for nothing, now waiting for `id`.
    fn allocate_lane(&mut self, id: T) -> usize {
        // The leftmost one keeps the lines short.
        let free = self.lanes.iter().position(Option::is_none).unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        self.set_lane(free, Some(id));
        free
    }

    fn node_row(&self, node: usize) -> String {
        let marks = self.lanes.iter().enumerate().map(|(at, lane)| match lane {
            _ if at == node => '●',
            Some(_) => '│',
            None => ' ',
        });
        join_with_gaps(marks, ' ').trim_end().into()
    }

    /// A line that connects two lanes; `end` is drawn at `other`.
    fn bridge_row(&self, lane: usize, other: usize, end: char) -> String {
        let left = lane.min(other);
        let right = lane.max(other);
        let mut line = String::new();
        for (at, waiting) in self.lanes.iter().enumerate() {
            let within = at > left && at < right;
            line.push(match waiting {
                _ if at == other => end,
                _ if at == lane => {
                    if lane < other {
                        '├'
                    } else {
                        '┤'
                    }
                }
                Some(_) if within => '┼',
                None if within => '─',
                Some(_) => '│',
                None => ' ',
            });
            line.push(if at >= left && at < right { '─' } else { ' ' });
        }
        line.trim_end().into()
    }
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
