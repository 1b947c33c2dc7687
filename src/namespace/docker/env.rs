//! A microservice's label in a container's environment.

use crate::model::netns::{MICROSERVICE_LABEL_MAX, MICROSERVICE_VARIABLE};

/// What the environment says.
#[derive(Debug, PartialEq, Eq)]
pub enum Label {
    /// Not a microservice.
    None,
    /// The label.
    Some(String),
    /// A text that no wish can refer to.
    Unusable(String),
}

/// The label in a container's `Config.Env`. A variable that is written twice has its last value in the container; a name without `=` unsets it.
pub fn label(env: &[String]) -> Label {
    let mut value = "";
    for entry in env {
        match entry.split_once('=') {
            Some((MICROSERVICE_VARIABLE, text)) => value = text,
            None if entry == MICROSERVICE_VARIABLE => value = "",
            _ => {}
        }
    }
    match value {
        "" => Label::None,
        text if text.len() > MICROSERVICE_LABEL_MAX || text.chars().any(char::is_control) => Label::Unusable(text.to_owned()),
        text => Label::Some(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts_and_must_be_one_that_a_wish_can_name() {
        let read = |env: &[&str]| label(&env.iter().map(ToString::to_string).collect::<Vec<_>>());
        let some = |text: &str| Label::Some(text.to_owned());
        for (env, want) in [
            (&["PATH=/bin"][..], Label::None),
            (&["MICROSERVICE_LABEL=ms1"], some("ms1")),
            (&["MICROSERVICE_LABEL=ms1=2"], some("ms1=2")),
            (&["MICROSERVICE_LABEL=a", "X=y", "MICROSERVICE_LABEL=b"], some("b")),
            (&["MICROSERVICE_LABEL=a", "MICROSERVICE_LABEL="], Label::None),
            (&["MICROSERVICE_LABEL=a", "MICROSERVICE_LABEL"], Label::None),
            (&["MICROSERVICE_LABELS=a", "XMICROSERVICE_LABEL=a", "microservice_label=a"], Label::None),
            (&["MICROSERVICE_LABEL= a b/ü "], some(" a b/ü ")),
            (&["MICROSERVICE_LABEL=a\u{1b}[2J"], Label::Unusable("a\u{1b}[2J".to_owned())),
        ] {
            assert_eq!(read(env), want, "{env:?}");
        }
        assert!(matches!(read(&[&format!("MICROSERVICE_LABEL={}", "m".repeat(254))]), Label::Unusable(_)));
    }
}
