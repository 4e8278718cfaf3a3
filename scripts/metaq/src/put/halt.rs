use tokio::sync::watch;

/// Whether a line was given up for a reason that concerns every line, as all lanes see it.
#[derive(Clone)]
pub(super) struct Halt(watch::Sender<bool>);

impl Default for Halt {
    fn default() -> Halt {
        Halt(watch::Sender::new(false))
    }
}

impl Halt {
    pub(super) fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Returns once it is stopped. May be cancelled.
    pub(super) async fn wait(&self) {
        // Cannot fail, since this holds a sender.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}
