//! What is answered for each path.

use crate::metrics;
use crate::ready::{self, Facts};
use crate::samples;
use crate::watched::Watched;
use hyper::StatusCode;

pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) fn page(path: &str, watched: &Watched) -> Page {
    match path {
        "/" => ok(TEXT, front(watched)),
        "/metrics" => ok(OPEN_METRICS, metrics::encode(samples::take(watched))),
        "/healthz" => ok(TEXT, "ok\n".to_owned()),
        "/readyz" => readiness(watched),
        _ => Page { status: StatusCode::NOT_FOUND, content_type: TEXT, body: "no such page; see /\n".to_owned() },
    }
}

fn ok(content_type: &'static str, body: String) -> Page {
    Page { status: StatusCode::OK, content_type, body }
}

fn readiness(watched: &Watched) -> Page {
    let readiness = ready::judge(&Facts::look(watched));
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = serde_json::to_string(&readiness).expect("strings are JSON");
    body.push('\n');
    Page { status, content_type: "application/json", body }
}

fn front(watched: &Watched) -> String {
    let node = &watched.node;
    let role = node.slave_id().map_or("master".to_owned(), |id| format!("slave {id}"));
    let broker = node.config().system.broker_id;
    let readiness = ready::judge(&Facts::look(watched));
    let mut text = format!(
        "{} of broker {broker}, {}, up for {} s, {}\n\n\
         /metrics   numbers for Prometheus\n\
         /healthz   200 while the process lives\n\
         /readyz    200 when it does its work, else 503; with the reasons\n",
        role,
        node.version(),
        node.uptime().as_secs(),
        if readiness.ready { "ready" } else { "not ready" },
    );
    for (what, statements) in [("not ready", &readiness.reasons), ("to look at", &readiness.notes)] {
        for statement in statements {
            text += &format!("\n{what}: {}: {}\n", statement.code, statement.detail);
        }
    }
    text
}
