//! Tables: aligned, without frames, fitted to the terminal; one line per row when the output is no terminal.

use comfy_table::{ContentArrangement, Table};

use crate::cli::out::Out;
use crate::cli::text::safe;

/// A table of texts, each made safe. The column called STATE is coloured where that helps.
pub fn table(out: &Out, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header.to_vec());
    for row in rows {
        table.add_row(row.iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { safe(cell) }));
    }
    match out.width {
        Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    let text = lines.join("\n") + "\n";
    if out.colour { colour(&text) } else { text }
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
        assert_eq!(table(&out, &["NAME", "STATE", "MESSAGE"], rows()), expected);
    }

    #[test]
    fn fits_the_terminal_and_colours_states() {
        let out = Out { form: Form::Table, width: Some(60), colour: true };
        let text = table(&out, &["NAME", "STATE", "MESSAGE"], rows());
        assert!(text.contains("\x1b[32mCONFIGURED\x1b[0m"), "{text}");
        assert!(text.contains("\x1b[31mFAILED\x1b[0m"), "{text}");
        let longest = text.lines().map(|l| l.replace("\x1b[32m", "").replace("\x1b[31m", "").replace("\x1b[0m", "").chars().count()).max();
        assert!(longest <= Some(60), "{text}");
    }
}
