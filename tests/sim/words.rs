//! Marks in what people write, by which a message is known wherever its words turn up: `⟦11/104⟧`.

/// `words` behind the mark of their message.
pub(crate) fn marked(chat: i64, message: i64, words: &str) -> String {
    format!("⟦{chat}/{message}⟧ {words}")
}

/// The marks in `text`, as chat and message.
pub(crate) fn marks(text: &str) -> Vec<(i64, i64)> {
    let inside = text.split('⟦').skip(1).filter_map(|rest| rest.split_once('⟧'));
    inside
        .filter_map(|(mark, _)| mark.split_once('/'))
        .filter_map(|(c, m)| Some((c.parse().ok()?, m.parse().ok()?)))
        .collect()
}

/// The first words, for the story.
pub(crate) fn start(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    format!("{short:?}")
}
