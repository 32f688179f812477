//! Server-sent events of a model's stream: bytes in, whole events out, within limits.
//!
//! ```text
//! bytes ──gauge──▶ sse-stream ──▶ Event      the gauge counts before anything is kept
//!           └─ too much in all, or in one event without an end: the stream is over with an error
//! ```
//!
//! An event exists only with its blank line: what a cut leaves behind is dropped, never delivered. Bytes become text
//! only when the event is whole, so a character that two packets share is never harmed, and what is no UTF-8 is an
//! error instead of a replacement character. Comments (`: ping`) are no events, and whoever waits hears nothing of them.

use std::io::Cursor;

use futures_util::{Stream, StreamExt};
use sse_stream::SseByteStream;

/// How much a stream may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in all, comments included.
    pub total_bytes: usize,
    /// Bytes of one event, and of one line.
    pub event_bytes: usize,
}

/// One whole event that carries data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The `event:` field, where there is one.
    pub name: Option<String>,
    /// The `data:` lines, joined by line feeds.
    pub data: String,
}

/// Why a stream of events ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// The connection broke; the text is the caller's, who knows what may be said.
    #[error("{0}")]
    Broken(String),
    /// More bytes than an answer may have.
    #[error("the answer is longer than {limit} bytes")]
    TooLong {
        /// [`Limits::total_bytes`].
        limit: usize,
    },
    /// One event, or one line, that does not end.
    #[error("one event of the answer is longer than {limit} bytes")]
    EventTooLong {
        /// [`Limits::event_bytes`].
        limit: usize,
    },
    /// Bytes that are no text.
    #[error("the answer is not UTF-8")]
    NotUtf8,
}

/// The events in `bytes`, which may come in pieces of any size. Ends after the first error.
///
/// A stream that just ends gives no error: whether it was complete is for the reader of the events to say.
pub fn events<S, B>(bytes: S, limits: Limits) -> impl Stream<Item = Result<Event, SseError>>
where
    S: Stream<Item = Result<B, String>>,
    B: AsRef<[u8]>,
{
    let mut gauge = Gauge { limits, total: 0, line: 0, event: 0, comment: false, after_cr: false };
    let gauged = bytes.map(move |piece| {
        let piece = piece.map_err(SseError::Broken)?;
        gauge.take(piece.as_ref())?;
        Ok::<_, SseError>(Cursor::new(piece))
    });
    SseByteStream::new(gauged).filter_map(|block| {
        std::future::ready(match block {
            Ok(block) => block.data.map(|data| Ok(Event { name: block.event, data })),
            Err(err) => Some(Err(ours(err))),
        })
    })
}

/// The parser's error as ours; what the gauge said comes back unchanged.
fn ours(err: sse_stream::Error) -> SseError {
    match err {
        sse_stream::Error::Body(inner) => match inner.downcast::<SseError>() {
            Ok(ours) => *ours,
            Err(other) => SseError::Broken(other.to_string()),
        },
        sse_stream::Error::Utf8Parse(_) => SseError::NotUtf8,
        other => SseError::Broken(other.to_string()),
    }
}

/// Counts what the parser would have to keep. It sits before the parser, which has no limits of its own.
struct Gauge {
    limits: Limits,
    total: usize,
    line: usize,
    event: usize,
    comment: bool,
    after_cr: bool,
}

impl Gauge {
    fn take(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        self.total = self.total.saturating_add(bytes.len());
        if self.total > self.limits.total_bytes {
            return Err(SseError::TooLong { limit: self.limits.total_bytes });
        }
        for byte in bytes {
            let second_half = *byte == b'\n' && self.after_cr; // of a CRLF: no empty line of its own
            self.after_cr = *byte == b'\r';
            match byte {
                _ if second_half => {}
                b'\r' | b'\n' => {
                    if self.line == 0 {
                        self.event = 0;
                    }
                    self.line = 0;
                }
                _ => {
                    // Hours of `: ping` without a blank line between them are no long event.
                    self.comment = if self.line == 0 { *byte == b':' } else { self.comment };
                    self.line += 1;
                    self.event += usize::from(!self.comment);
                    if self.line.max(self.event) > self.limits.event_bytes {
                        return Err(SseError::EventTooLong { limit: self.limits.event_bytes });
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    const SMALL: Limits = Limits { total_bytes: 200, event_bytes: 20 };

    async fn read(bytes: &[u8], piece: usize, limits: Limits) -> Vec<Result<Event, SseError>> {
        let pieces: Vec<Result<Vec<u8>, String>> = bytes.chunks(piece).map(|piece| Ok(piece.to_vec())).collect();
        events(stream::iter(pieces), limits).collect().await
    }

    fn data(text: &str) -> Result<Event, SseError> {
        Ok(Event { name: None, data: text.to_owned() })
    }

    #[tokio::test]
    async fn bytes_become_events_whatever_the_pieces() {
        let long = format!("data: {}", "x".repeat(30));
        let endless = "data: 12345678\n".repeat(9);
        let pings = ": ping\n".repeat(9);
        let much = "data: 1\n\n".repeat(30);
        for (name, bytes, expected) in [
            ("one event", "data: a\n\n".as_bytes(), vec![data("a")]),
            ("CRLF", b"data: a\r\n\r\ndata: b\r\n\r\n", vec![data("a"), data("b")]),
            ("lines are joined", b"data: a\ndata: b\n\n", vec![data("a\nb")]),
            ("a comment is no event", b": ping\n\ndata: a\n\n: ping\n\n", vec![data("a")]),
            ("nor is a block without data", b"event: ping\nid: 1\n\n", vec![]),
            ("a name is kept", b"event: e\ndata: a\n\n", vec![Ok(Event { name: Some("e".into()), data: "a".into() })]),
            ("a cut event is none", b"data: a\n\ndata: b\n", vec![data("a")]),
            ("letters of two and four bytes", "data: é🦉\n\n".as_bytes(), vec![data("é🦉")]),
            ("no UTF-8", b"data: a\n\ndata: \xff\xfe\n\n", vec![data("a"), Err(SseError::NotUtf8)]),
            ("half a letter", b"data: \xf0\x9f\n\ndata: a\n\n", vec![Err(SseError::NotUtf8)]),
            ("a line without end", long.as_bytes(), vec![Err(SseError::EventTooLong { limit: 20 })]),
            ("an event without end", endless.as_bytes(), vec![Err(SseError::EventTooLong { limit: 20 })]),
            ("pings are no long event", pings.as_bytes(), vec![]),
        ] {
            for piece in [1, 2, 3, 7, 1000] {
                assert_eq!(read(bytes, piece, SMALL).await, expected, "{name}, in pieces of {piece}");
            }
        }
        let read = read(much.as_bytes(), 9, SMALL).await;
        assert_eq!(read.len(), 23, "what was whole before the limit is delivered");
        assert_eq!(read.last(), Some(&Err(SseError::TooLong { limit: 200 })));
    }

    #[tokio::test]
    async fn a_broken_connection_is_told_in_the_words_of_the_caller() {
        let pieces = stream::iter([Ok("data: a\n\nda"), Err("reset".to_owned()), Ok("ta: b\n\n")]);
        let read: Vec<_> = events(pieces, SMALL).collect().await;
        assert_eq!(read, [data("a"), Err(SseError::Broken("reset".into()))]);
    }
}
