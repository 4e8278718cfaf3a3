use std::fmt::Display;

/// What happened, as a number that two runs of one seed must share, and as lines where somebody wants to read them.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    digest: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(crate) fn new(readable: bool) -> Trace {
        Trace { digest: 0xcbf2_9ce4_8422_2325, lines: readable.then(Vec::new) }
    }

    pub(crate) fn mix(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// `line` is only asked for when somebody reads it.
    pub(crate) fn note<D: Display>(&mut self, now_ms: u64, line: impl FnOnce() -> D) {
        self.mix(now_ms);
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>9.3} s  {}", now_ms as f64 / 1000.0, line()));
        }
    }

    pub(crate) fn finish(self) -> (u64, Vec<String>) {
        (self.digest, self.lines.unwrap_or_default())
    }
}
