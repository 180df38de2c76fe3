//! Aligned columns.

use std::fmt::Write;

/// Cells under headings; every column as wide as its widest cell, two blanks between columns.
pub fn render(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    let clean: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    for row in &clean {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let headings: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    for row in std::iter::once(&headings).chain(&clean) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A cell without what a terminal would obey: a label or a command may hold anything.
pub fn printable(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_harmless() {
        let rows = [
            vec!["a".to_owned(), "long cell".to_owned(), String::new()],
            vec!["bbbb".to_owned(), "\x1b[2J".to_owned(), "x".to_owned()],
        ];
        assert_eq!(
            render(&["ID", "NAME", "Z"], &rows),
            "ID    NAME       Z\na     long cell\nbbbb  \u{fffd}[2J       x\n"
        );
    }
}
