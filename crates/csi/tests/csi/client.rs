//! The client, with drivers that start, stop, are replaced or do not respond.

use crate::world::*;
use csi::directory::{DirectoryDriver, Faults, Options, Order, Serving};
use csi::v1::identity_server::{Identity, IdentityServer};
use csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};
use csi::{Code, Driver, Metrics, Settings};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::time::Duration;
use tonic::{Request, Response};

#[tokio::test]
async fn a_driver_is_described_once_per_connection() {
    let world = World::new().await;
    for _ in 0..3 {
        let about = world.driver.about().await.unwrap();
        assert_eq!(about.name, csi::directory::DEFAULT_NAME);
        assert!(about.creates_volumes() && about.expands_in_controller() && !about.attaches(), "{about:?}");
    }
    assert_eq!(world.server.calls().named("GetPluginInfo").len(), 1);
    // Another driver is started at the same socket.
    let World { root, server, serving, driver } = world;
    serving.stop().await;
    drop(server);
    let options = Options { durable: false, name: "other.example.com".to_owned(), attach: true, ..Options::default() };
    let server = DirectoryDriver::open(&root.path().join("volumes"), options, Faults::default()).unwrap();
    let _serving = Serving::start(server, &root.path().join("csi.sock")).await.unwrap();
    driver.wait_until_ready().await;
    let about = driver.about().await.unwrap();
    assert_eq!((about.name.as_str(), about.attaches()), ("other.example.com", true));
}

#[tokio::test]
async fn a_driver_that_is_not_started_yet_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("csi.sock");
    let driver = Driver::connect(&format!("unix://{}", socket.display()), Settings::default()).unwrap();
    let failure = driver.probe(ProbeRequest {}).await.unwrap_err();
    assert_eq!(failure.code, Code::Unavailable);
    let expected = format!("the connection to the CSI driver at unix://{} failed: No such file", socket.display());
    assert!(failure.message.starts_with(&expected), "{failure}");
    let waiting = tokio::spawn({
        let driver = driver.clone();
        async move { driver.wait_until_ready().await }
    });
    let options = Options { durable: false, ..Options::default() };
    let server = DirectoryDriver::open(&root.path().join("volumes"), options, Faults::default()).unwrap();
    server.faults().order(Order::fail("Probe", Code::Unavailable).times(2));
    let _serving = Serving::start(server, &socket).await.unwrap();
    waiting.await.unwrap();
    driver.create_volume(create("a")).await.unwrap();
}

#[tokio::test]
async fn a_call_to_a_driver_that_never_responds_ends_at_the_deadline() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("csi.sock");
    let _deaf = tokio::net::UnixListener::bind(&socket).unwrap();
    let settings = Settings { deadline: Duration::from_millis(100), ..Settings::default() };
    let driver = Driver::connect(socket.to_str().unwrap(), settings).unwrap();
    let failure = driver.create_volume(create("a")).await.unwrap_err();
    assert_eq!(failure.code, Code::DeadlineExceeded, "{failure}");
    assert!(failure.message.starts_with("the CSI driver did not answer in time"), "{failure}");
}

#[tokio::test]
async fn another_protocol_is_a_broken_connection() {
    use tokio::io::AsyncWriteExt;
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("csi.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(b"SSH-2.0-hello\r\n").await.unwrap();
        }
    });
    let driver = Driver::connect(socket.to_str().unwrap(), Settings::default()).unwrap();
    let failure = driver.create_volume(create("a")).await.unwrap_err();
    assert_eq!(failure.code, Code::Unavailable, "{failure}");
}

#[tokio::test]
async fn a_driver_without_a_node_service_at_its_socket_is_complete() {
    let world = World::new().await;
    world.server.faults().order(Order::fail("NodeGetCapabilities", Code::Unimplemented).times(1));
    assert!(world.driver.about().await.unwrap().node.is_empty());
}

/// A response that breaks off or cannot be read is not a refusal, whatever code the library assigns: the volume may
/// exist.
#[tokio::test]
async fn a_failure_of_the_transport_leaves_the_outcome_open() {
    let answer = |code: u16, status: &str, body: &'static str| {
        let answer = http::Response::builder().status(code).header("content-type", "application/grpc");
        let answer = if status.is_empty() { answer } else { answer.header("grpc-status", status) };
        answer.body(body.to_owned()).unwrap()
    };
    let cases = [
        ("no trailers", answer(200, "", "\0\0\0\0\0"), Code::Unavailable),
        ("no message", answer(200, "0", ""), Code::Unavailable),
        ("half a message", answer(200, "", "\0\0\0\0\u{9}abc"), Code::Unavailable),
        ("no such message", answer(200, "", "\0\0\0\0\u{3}abc"), Code::Unavailable),
        ("a giant", answer(200, "", "\0\u{7f}\u{7f}\u{7f}\u{7f}"), Code::Unavailable),
        ("another server", answer(404, "", ""), Code::Unavailable),
        ("the driver's word", answer(200, "3", ""), Code::InvalidArgument),
    ];
    for (case, answer, wanted) in cases {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("csi.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper::service::service_fn(move |_| {
                let answer = answer.clone();
                async move { Ok::<_, std::convert::Infallible>(answer) }
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            serving.serve_connection(TokioIo::new(stream), service).await
        });
        let driver = Driver::connect(socket.to_str().unwrap(), Settings::default()).unwrap();
        let failure = driver.create_volume(create("a")).await.unwrap_err();
        assert_eq!(failure.code, wanted, "{case}: {failure}");
    }
}

/// A driver that only has a name.
#[derive(Clone)]
struct Named(String);

#[tonic::async_trait]
impl Identity for Named {
    async fn get_plugin_info(&self, _: Request<GetPluginInfoRequest>) -> Answer<GetPluginInfoResponse> {
        Ok(Response::new(GetPluginInfoResponse { name: self.0.clone(), ..Default::default() }))
    }
    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Answer<GetPluginCapabilitiesResponse> {
        Ok(Response::new(Default::default()))
    }
    async fn probe(&self, _: Request<ProbeRequest>) -> Answer<ProbeResponse> {
        Ok(Response::new(Default::default()))
    }
}

type Answer<T> = Result<Response<T>, tonic::Status>;

/// The result of describing a driver with this name.
async fn about_one_named(name: &str) -> Result<String, String> {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("csi.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let service = TowerToHyperService::new(IdentityServer::new(Named(name.to_owned())));
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        serving.serve_connection(TokioIo::new(stream), service).await
    });
    let driver = Driver::connect(socket.to_str().unwrap(), Settings::default()).unwrap();
    driver.about().await.map(|about| about.name.clone()).map_err(|failure| failure.message)
}

#[tokio::test]
async fn a_driver_with_an_invalid_name_is_refused() {
    for name in ["", "two words", "-a", "a-", "a..b", "a.", "a/b", "ü", &"a".repeat(64)] {
        let why = about_one_named(name).await.unwrap_err();
        assert!(why.contains(&format!("calls itself {name:?}: a driver's name has at most 63")), "{why}");
    }
    for name in ["a", "Ebs.csi.example.COM", "a-1.b", &"a".repeat(63)] {
        assert_eq!(about_one_named(name).await.unwrap(), name);
    }
}

#[tokio::test]
async fn calls_are_counted_by_driver_method_and_code() {
    let metrics = Metrics::default();
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let world = World::new().await;
    let driver = Driver::connect(&world.serving.endpoint(), Settings { metrics, ..Settings::default() }).unwrap();
    driver.about().await.unwrap();
    driver.create_volume(create("a")).await.unwrap();
    driver.create_volume(create("")).await.unwrap_err();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let name = csi::directory::DEFAULT_NAME;
    let count = |driver: &str, method: &str, code: &str| {
        format!(
            "csi_sidecar_operations_seconds_count{{driver_name=\"{driver}\",method_name=\"{method}\",\
             grpc_status_code=\"{code}\"}} 1"
        )
    };
    for line in [
        count("unknown-driver", "/csi.v1.Identity/GetPluginInfo", "OK"),
        count(name, "/csi.v1.Controller/CreateVolume", "OK"),
        count(name, "/csi.v1.Controller/CreateVolume", "InvalidArgument"),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
}
