//! The name that was probably meant by one that does not exist.

/// Longest names that are compared, characters: the time grows with the square.
const LENGTH_MAX: usize = 256;

/// Returns the name that differs least from what was typed; none if all differ in more than a third of their characters.
/// Exchanged neighbours count as one difference, and of equally near names the first counts.
pub fn find_nearest_name<T: AsRef<str>>(typed: &str, names: impl IntoIterator<Item = T>) -> Option<T> {
    let typed: Vec<char> = typed.to_lowercase().chars().collect();
    // At least one, so that a slip in a short name is found, too.
    let limit = (typed.len() / 3).max(1);
    if typed.is_empty() || typed.len() > LENGTH_MAX {
        return None;
    }
    let mut nearest: Option<(usize, T)> = None;
    for name in names {
        let other: Vec<char> = name.as_ref().to_lowercase().chars().collect();
        // As many differences are certain, and the comparison is saved.
        if other.len().abs_diff(typed.len()) > limit {
            continue;
        }
        let distance = count_differences(&typed, &other);
        // A name of which every character is another one is not near, however short it is.
        let is_near = distance <= limit && distance < typed.len().max(other.len());
        if is_near && nearest.as_ref().is_none_or(|(least, _)| distance < *least) {
            nearest = Some((distance, name));
        }
    }
    nearest.map(|(_, name)| name)
}

/// How many characters have to be inserted, removed, replaced or exchanged with their neighbour to make one of the other
/// (optimal string alignment, row by row).
fn count_differences(one: &[char], other: &[char]) -> usize {
    // The second row above the current one, which only an exchange looks at.
    let mut before = Vec::new();
    let mut above: Vec<usize> = (0..=other.len()).collect();
    for (row, mine) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, theirs) in other.iter().enumerate() {
            let replaced = above[column] + usize::from(mine != theirs);
            let mut least = replaced.min(above[column + 1] + 1).min(current[column] + 1);
            let exchanged = row > 0 && column > 0 && one[row - 1] == *theirs && other[column - 1] == *mine;
            if exchanged {
                let before: &Vec<usize> = &before;
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut above, current);
    }
    above.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let names = ["first", "fine", "delivered", "v1.0", "HEAD"];
        let nearest = |typed| find_nearest_name(typed, names);
        assert_eq!(nearest("frist"), Some("first"));
        assert_eq!(nearest("fnie"), Some("fine"));
        assert_eq!(nearest("deliverd"), Some("delivered"));
        assert_eq!(nearest("v1.O"), Some("v1.0"));
        assert_eq!(nearest("head"), Some("HEAD"));
        assert_eq!(nearest("other"), None);
        assert_eq!(nearest(""), None);
        assert_eq!(find_nearest_name("a", ["b"]), None);
    }
}
