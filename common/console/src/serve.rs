//! The listener: HTTP/1.1 for a few connections at a time.

use crate::pages;
use crate::watched::Watched;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metaq_broker::NodeView;
use metaq_net::refusals::Seldom;
use metaq_registry::State;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

/// One more ends the oldest: whoever asks whether the node is ready must not wait behind those that say nothing.
const CONNECTIONS_MAX: usize = 64;

/// Within it a request's head has to come.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// No connection lives longer, however busy it is.
const CONNECTION_MAX: Duration = Duration::from_secs(300);

/// Between two tries to listen.
const LISTEN_PAUSE: Duration = Duration::from_secs(2);

/// A running console; dropping it ends it.
pub struct Console {
    registry: Arc<OnceLock<watch::Receiver<State>>>,
    _task: Option<AbortOnDropHandle<()>>,
}

impl Console {
    /// Returns at once. Listens where the configuration says; a port that is taken is said once and tried again for
    /// ever. With `dashboardHttpPort=0` it does nothing. `bound` is the lag that is still in order.
    pub fn start(node: NodeView, bound: Duration) -> Console {
        let config = node.config();
        let (host, port) = (config.system.dashboard_http_host, config.system.dashboard_http_port);
        let registry = Arc::new(OnceLock::new());
        let watched = Watched { node, registry: Arc::clone(&registry), bound };
        let run = (port != 0).then(|| tokio::spawn(serve(SocketAddr::new(host, port), watched)));
        Console { registry, _task: run.map(AbortOnDropHandle::new) }
    }

    /// The node registers from now on, and this says how far it is.
    pub fn follow_registry(&self, state: watch::Receiver<State>) {
        // A second registry would be a mistake of the caller that no page is worth a panic for.
        let _ = self.registry.set(state);
    }
}

async fn serve(address: SocketAddr, watched: Watched) {
    let listener = listen(address).await;
    let mut open = VecDeque::with_capacity(CONNECTIONS_MAX);
    let mut failed = Seldom::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection: &AbortOnDropHandle<()>| !connection.is_finished());
                if open.len() >= CONNECTIONS_MAX {
                    open.pop_front();
                }
                let watched = watched.clone();
                open.push_back(AbortOnDropHandle::new(tokio::spawn(async move {
                    // Who is cut off after that long, or breaks the protocol, learns nothing more; nor do we.
                    let _ = tokio::time::timeout(CONNECTION_MAX, converse(stream, watched)).await;
                })));
            }
            Err(error) => {
                if let Some(since_last_line) = failed.line_is_due(Instant::now()) {
                    warn!(%error, since_last_line, "the console cannot accept a connection");
                }
                tokio::time::sleep(LISTEN_PAUSE).await;
            }
        }
    }
}

async fn listen(address: SocketAddr) -> TcpListener {
    let mut said = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(%address, "serving metrics over HTTP");
                return listener;
            }
            Err(error) if !said => {
                warn!(
                    %address, %error,
                    "no metrics: cannot listen, trying on; is it another broker's? dashboardHttpPort sets the port, 0: off"
                );
                said = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(LISTEN_PAUSE).await;
    }
}

async fn converse(stream: TcpStream, watched: Watched) -> Result<(), hyper::Error> {
    let answer = service_fn(move |request: Request<Incoming>| {
        let response = respond(request.method(), request.uri().path(), &watched);
        async move { Ok::<_, Infallible>(response) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}

fn respond(method: &Method, path: &str, watched: &Watched) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = Response::new(Full::from("this console only shows; use GET\n"));
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let page = pages::page(path, watched);
    let mut response = Response::new(Full::from(page.body));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
