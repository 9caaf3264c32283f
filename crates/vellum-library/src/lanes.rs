//! Lanes of a history: where each snapshot stands beside the list, and which lines lead from it to its parents.
//!
//! Invariant: the list has no snapshot before its children. Each open line of descent has a lane; a lane waits for the next
//! snapshot of its line. The line of a first parent stays in its lane. A line keeps its colour, whichever lane it is in.

/// Assigns lanes to the entries of one list.
#[derive(Debug, Clone)]
pub struct HistoryLanes<T> {
    lanes: Vec<Option<LaneLine<T>>>,
    next_colour: u32,
}

/// A line of descent that goes on below.
#[derive(Debug, Clone, Copy)]
struct LaneLine<T> {
    /// The snapshot that comes next on it.
    waiting: T,
    colour: u32,
}

impl<T> Default for HistoryLanes<T> {
    fn default() -> Self {
        Self { lanes: Vec::new(), next_colour: 0 }
    }
}

/// A line beside one entry. Columns count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneEdge {
    /// The column at the upper edge of the row; None: it begins at the entry.
    pub above: Option<usize>,
    /// The column at the lower edge of the row; None: it ends at the entry.
    pub below: Option<usize>,
    /// The number of its line.
    pub colour: u32,
}

/// What stands beside one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneStep {
    /// The column of the entry.
    pub column: usize,
    /// The lines that pass it, end at it or begin at it.
    pub edges: Vec<LaneEdge>,
    /// The columns in use above the entry, its own and those that end there included.
    pub occupied: Vec<bool>,
    /// Other columns whose lines end at the entry, in ascending order.
    pub ends: Vec<usize>,
    /// Whether the line of the entry goes on below.
    pub continues: bool,
    /// Columns to which lines lead from the entry, besides its own: of parents after the first.
    pub forks: Vec<LaneFork>,
}

/// A line from an entry to another column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneFork {
    /// The other column.
    pub column: usize,
    /// Whether a line begins there; it joins one that is there already, otherwise.
    pub is_new: bool,
}

impl<T: Copy + PartialEq> HistoryLanes<T> {
    /// The next entry and its parents, as far as they will be listed too.
    pub fn add_entry(&mut self, id: T, parents: &[T]) -> LaneStep {
        let is_waiting = |lane: &Option<LaneLine<T>>| lane.as_ref().is_some_and(|line| line.waiting == id);
        let mut found: Vec<usize> = (0..self.lanes.len()).filter(|at| is_waiting(&self.lanes[*at])).collect();
        let has_children = !found.is_empty();
        let (column, ends) = match found.is_empty() {
            true => (self.open_lane(id), Vec::new()),
            false => (found.remove(0), found),
        };
        let occupied = self.lanes.iter().map(Option::is_some).collect();
        let mut edges = Vec::with_capacity(self.lanes.len() + parents.len());
        for (at, line) in self.lanes.iter().enumerate() {
            let Some(LaneLine { colour, .. }) = *line else { continue };
            let ends_here = at == column || ends.contains(&at);
            // A line that nothing leads to begins at the entry itself.
            if at != column || has_children {
                let below = (!ends_here).then_some(at);
                edges.push(LaneEdge { above: Some(at), below, colour });
            }
        }
        // Before the forks are added: the line to a further parent may begin in a column that has just become free.
        ends.iter().for_each(|end| self.lanes[*end] = None);
        // Never empty: the lane of the entry was found waiting, or was opened above.
        let own = self.lanes[column].map_or(0, |line| line.colour);
        self.lanes[column] = parents.first().map(|parent| LaneLine { waiting: *parent, colour: own });
        if !parents.is_empty() {
            edges.push(LaneEdge { above: None, below: Some(column), colour: own });
        }
        let forks = self.add_forks(parents, &mut edges);
        // Lanes at the right end that wait for nothing would only widen the rows.
        while let Some(None) = self.lanes.last() {
            self.lanes.pop();
        }
        LaneStep { column, edges, occupied, ends, continues: !parents.is_empty(), forks }
    }

    fn add_forks(&mut self, parents: &[T], edges: &mut Vec<LaneEdge>) -> Vec<LaneFork> {
        let mut forks = Vec::new();
        for parent in parents.iter().skip(1) {
            let is_known =
                |lane: &Option<LaneLine<T>>| lane.as_ref().is_some_and(|line| line.waiting == *parent);
            let known = self.lanes.iter().position(is_known);
            let column = known.unwrap_or_else(|| self.open_lane(*parent));
            let colour = self.lanes[column].map_or(0, |line| line.colour);
            edges.push(LaneEdge { above: None, below: Some(column), colour });
            forks.push(LaneFork { column, is_new: known.is_none() });
        }
        forks
    }

    /// A lane that waits for nothing, now waiting for `id`.
    fn open_lane(&mut self, id: T) -> usize {
        // The leftmost one keeps the rows short.
        let free = self.lanes.iter().position(Option::is_none).unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        self.lanes[free] = Some(LaneLine { waiting: id, colour: self.next_colour });
        self.next_colour += 1;
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(entries: &[(u32, &[u32])]) -> Vec<LaneStep> {
        let mut lanes = HistoryLanes::default();
        entries.iter().map(|(id, parents)| lanes.add_entry(*id, parents)).collect()
    }

    #[test]
    fn a_fork_keeps_its_colour_until_it_meets() {
        let steps = layout(&[(5, &[3]), (4, &[2]), (3, &[2]), (2, &[1]), (1, &[])]);
        assert_eq!(steps.iter().map(|step| step.column).collect::<Vec<_>>(), [0, 1, 0, 0, 0]);
        let edge = |above, below, colour| LaneEdge { above, below, colour };
        assert_eq!(steps[0].edges, [edge(None, Some(0), 0)]);
        assert_eq!(steps[1].edges, [edge(Some(0), Some(0), 0), edge(None, Some(1), 1)]);
        assert_eq!(steps[3].edges, [edge(Some(0), None, 0), edge(Some(1), None, 1), edge(None, Some(0), 0)]);
        assert_eq!(steps[4].edges, [edge(Some(0), None, 0)]);
    }

    #[test]
    fn a_free_lane_is_used_again_in_another_colour() {
        let steps = layout(&[(9, &[]), (5, &[1]), (4, &[1]), (1, &[])]);
        assert_eq!(steps[1].column, 0);
        assert_eq!(steps[1].edges, [LaneEdge { above: None, below: Some(0), colour: 1 }]);
        assert_eq!(steps[3].ends, [1]);
    }

    #[test]
    fn every_line_goes_on_where_the_row_above_left_it() {
        let steps = layout(&[(7, &[6, 5]), (6, &[4]), (5, &[4, 3]), (4, &[2]), (3, &[2]), (2, &[])]);
        for pair in steps.windows(2) {
            let mut below: Vec<_> = pair[0].edges.iter().filter_map(|edge| edge.below).collect();
            let mut above: Vec<_> = pair[1].edges.iter().filter_map(|edge| edge.above).collect();
            below.sort_unstable();
            below.dedup();
            above.sort_unstable();
            assert_eq!(below, above);
        }
    }
}
