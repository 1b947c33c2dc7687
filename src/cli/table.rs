//! Tables: aligned, without frames, fitted to the terminal; one line per row when the output is no terminal.

use comfy_table::{ColumnConstraint, ContentArrangement, Table};

use crate::cli::out::Out;
use crate::cli::text::safe;

/// Blanks between columns.
const GAP: u16 = 2;
/// Columns whose texts may take several lines, and the width below which that is no pleasure to read.
const FLEXIBLE: [(&str, usize); 5] = [("NAME", 24), ("REFERENCE", 24), ("LINK", 20), ("ADDRESSES", 18), ("MESSAGE", 30)];

/// A table of texts, each made safe. On a terminal that is too narrow the `spare` columns are left out, the first one first, and a last line
/// says so. The column called STATE is coloured where that helps.
pub fn table(out: &Out, header: &[&str], spare: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let cell = |text: &String| if text.is_empty() { "-".to_owned() } else { safe(text) };
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.iter().map(cell).collect()).collect();
    let left_out = out.width.map_or(Vec::new(), |width| too_wide(usize::from(width), header, spare, &rows));
    let shown: Vec<usize> = (0..header.len()).filter(|i| !left_out.contains(&header[*i])).collect();
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(shown.iter().map(|i| header[*i]));
    for row in &rows {
        table.add_row(shown.iter().map(|i| &row[*i]));
    }
    match out.width {
        Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    for (column, title) in table.column_iter_mut().zip(shown.iter().map(|i| header[*i])) {
        column.set_padding((0, GAP));
        if !FLEXIBLE.iter().any(|(flexible, _)| *flexible == title) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    let text = lines.join("\n") + "\n";
    let note = if left_out.is_empty() { String::new() } else { format!("(left out for want of width: {})\n", left_out.join(", ")) };
    if out.colour { colour(&text) + &note } else { text + &note }
}

/// The spare columns that have to go so that the rest can be read.
fn too_wide<'a>(width: usize, header: &[&str], spare: &[&'a str], rows: &[Vec<String>]) -> Vec<&'a str> {
    let widest = |i: usize| rows.iter().map(|row| row[i].chars().count()).chain([header[i].len()]).max().unwrap_or(0);
    let least = |i: usize| FLEXIBLE.iter().find(|(title, _)| *title == header[i]).map_or(widest(i), |(_, least)| widest(i).min(*least));
    let mut needed: usize = (0..header.len()).map(|i| least(i) + usize::from(GAP)).sum();
    let mut gone = Vec::new();
    for title in spare {
        if needed <= width {
            break;
        }
        if let Some(i) = header.iter().position(|h| h == title) {
            needed -= least(i) + usize::from(GAP);
            gone.push(*title);
        }
    }
    gone
}

/// Colours the words that stand below the header STATE. The table is laid out first, so no width is miscounted; a row whose characters are wider
/// than one column is left plain.
fn colour(text: &str) -> String {
    let Some(at) = text.lines().next().and_then(|header| header.find("STATE")) else { return text.to_owned() };
    let mut coloured = String::with_capacity(text.len() + 64);
    for line in text.lines() {
        match line.get(at..).map(|rest| rest.split(' ').next().unwrap_or_default()) {
            Some(word) if state_colour(word).is_some() => {
                coloured.push_str(&line[..at]);
                coloured.push_str(&paint(word));
                coloured.push_str(&line[at + word.len()..]);
            }
            _ => coloured.push_str(line),
        }
        coloured.push('\n');
    }
    coloured
}

/// A state's word in its colour.
pub fn paint(state: &str) -> String {
    state_colour(state).map_or_else(|| state.to_owned(), |code| format!("\x1b[{code}m{state}\x1b[0m"))
}

fn state_colour(state: &str) -> Option<u8> {
    const RED: u8 = 31;
    const GREEN: u8 = 32;
    const YELLOW: u8 = 33;
    match state {
        "CONFIGURED" | "OBTAINED" | "BOUND" | "OK" => Some(GREEN),
        "PENDING" | "RETRYING" | "MISSING" | "RESOLVING" | "REMOVED" | "DISCOVERED" | "INIT" => Some(YELLOW),
        "INVALID" | "FAILED" | "REFUSED" | "UNIMPLEMENTED" | "ERROR" => Some(RED),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Form;

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        vec![row(["veth1", "CONFIGURED", ""]), row(["a\x1b[2Jb", "FAILED", "one\ntwo, and more than the width of this terminal can take"])]
    }

    #[test]
    fn plain() {
        let out = Out { form: Form::Table, width: None, colour: false };
        let expected = "\
NAME         STATE       MESSAGE
veth1        CONFIGURED  -
a\\u{1b}[2Jb  FAILED      one\\ntwo, and more than the width of this terminal can take
";
        assert_eq!(table(&out, &["NAME", "STATE", "MESSAGE"], &[], rows()), expected);
    }

    #[test]
    fn fits_the_terminal_and_colours_states() {
        let out = Out { form: Form::Table, width: Some(60), colour: true };
        let text = table(&out, &["NAME", "STATE", "MESSAGE"], &[], rows());
        assert!(text.contains("\x1b[32mCONFIGURED\x1b[0m"), "{text}");
        assert!(text.contains("\x1b[31mFAILED\x1b[0m"), "{text}");
        let longest = text.lines().map(|l| l.replace("\x1b[32m", "").replace("\x1b[31m", "").replace("\x1b[0m", "").chars().count()).max();
        assert!(longest <= Some(60), "{text}");
    }

    #[test]
    fn what_is_less_important_makes_room() {
        let out = |width| Out { form: Form::Table, width: Some(width), colour: false };
        let row = ["veth1", "CONFIGURED", "02:00:00:00:00:01", "1500", "10.0.0.1/24"].map(str::to_owned).to_vec();
        let show = |width| table(&out(width), &["NAME", "STATE", "MAC", "MTU", "ADDRESSES"], &["MAC", "MTU"], [row.clone()]);
        assert!(show(80).starts_with("NAME   STATE       MAC                MTU   ADDRESSES\n"), "{}", show(80));
        let expected = "\
NAME   STATE       MTU   ADDRESSES
veth1  CONFIGURED  1500  10.0.0.1/24
(left out for want of width: MAC)
";
        assert_eq!(show(50), expected);
        assert!(show(35).ends_with("(left out for want of width: MAC, MTU)\n"), "{}", show(35));
    }
}
