//! The interoperability cases on tonic: `quarry-interop target [ca]`.

use std::error::Error;
use std::future::Future;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};

const PREFIX: &str = "/interop.Service/";
const REFUSAL: &str = "größer als 100 %: 大";
const PATIENCE: Duration = Duration::from_secs(20);
const LARGE_SIZE: usize = 4 << 20;
const LARGE_HEADER_SIZE: usize = 15_000;

type Failure = Box<dyn Error + Send + Sync>;
type Outcome = Result<String, Failure>;

/// Bytes as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, body: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(body);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[derive(Clone)]
struct Client {
    grpc: Grpc<Channel>,
}

fn path(method: &str) -> PathAndQuery {
    PathAndQuery::try_from(format!("{PREFIX}{method}")).expect("a path")
}

fn request(body: impl Into<Bytes>) -> Request<Bytes> {
    let mut request = Request::new(body.into());
    request.set_timeout(PATIENCE);
    request
}

fn same<T: PartialEq + std::fmt::Debug>(got: T, wanted: T) -> Result<(), Failure> {
    if got == wanted {
        return Ok(());
    }
    Err(format!("{got:?} instead of {wanted:?}").into())
}

impl Client {
    async fn unary(&self, method: &str, request: Request<Bytes>) -> Result<Bytes, Status> {
        let mut grpc = self.grpc.clone();
        grpc.ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc.unary(request, path(method), Raw).await?.into_inner())
    }

    async fn stream(&self, method: &str, body: &'static str) -> Result<Streaming<Bytes>, Failure> {
        let mut grpc = self.grpc.clone();
        grpc.ready().await?;
        Ok(grpc
            .server_streaming(request(body), path(method), Raw)
            .await?
            .into_inner())
    }

    async fn expect(&self, method: &str, body: impl Into<Bytes>, wanted: impl Into<Bytes>) -> Result<(), Failure> {
        same(self.unary(method, request(body)).await?, wanted.into())
    }

    async fn equal(&self, method: &str, size: usize) -> Outcome {
        // gzip makes it some eight times smaller
        let byte = |run: u32| (run.wrapping_mul(run).wrapping_mul(2_654_435_761) >> 24) as u8;
        let body: Bytes = (0..size).map(|index| byte((index / 16) as u32)).collect();
        let answer = self.unary(method, request(body.clone())).await?;
        if answer != body {
            return Err(format!("{} other bytes came back", answer.len()).into());
        }
        Ok(format!("{size} bytes"))
    }

    async fn server_stream(self) -> Outcome {
        let mut answers = self.stream("Stream", "").await?;
        for number in 0..100 {
            same(answers.message().await?, Some(Bytes::from(number.to_string())))?;
        }
        same(answers.message().await?, None)?;
        Ok("100 messages".into())
    }

    async fn bidi(self) -> Outcome {
        let (pings, receiver) = tokio::sync::mpsc::channel(1);
        let mut grpc = self.grpc.clone();
        grpc.ready().await?;
        let requests = Request::new(ReceiverStream::new(receiver));
        let mut answers = grpc.streaming(requests, path("PingPong"), Raw).await?.into_inner();
        for number in 0..20 {
            let ping = Bytes::from(number.to_string());
            pings.send(ping.clone()).await?;
            same(answers.message().await?, Some(ping))?;
        }
        drop(pings);
        same(answers.message().await?, Some(Bytes::from("end")))?;
        same(answers.message().await?, None)?;
        Ok("20 pings".into())
    }

    async fn early_end(self) -> Outcome {
        let (pings, receiver) = tokio::sync::mpsc::channel(2);
        pings.send(Bytes::from("0")).await?;
        pings.send(Bytes::from("bye")).await?;
        let mut grpc = self.grpc.clone();
        grpc.ready().await?;
        let requests = Request::new(ReceiverStream::new(receiver));
        let mut answers = grpc.streaming(requests, path("PingPong"), Raw).await?.into_inner();
        same(answers.message().await?, Some(Bytes::from("0")))?;
        same(answers.message().await?, None)?;
        drop(pings);
        Ok("the server ended it".into())
    }

    async fn cancel(self) -> Outcome {
        let mut answers = self.stream("Park", "cancelled").await?;
        same(answers.message().await?, Some(Bytes::from("parked")))?;
        drop(answers);
        self.expect("Ended", "cancelled", "ended").await?;
        Ok("the server saw the end".into())
    }

    /// tonic's own clock ends the call first, and its name for that is CANCELLED "Timeout expired".
    async fn deadline(self) -> Outcome {
        let mut hurried = Request::new(Bytes::from("late"));
        hurried.set_timeout(Duration::from_millis(300));
        let started = Instant::now();
        let ending = self
            .unary("Silent", hurried)
            .await
            .expect_err("the server never answers");
        let took = started.elapsed();
        if ending.code() != Code::DeadlineExceeded {
            same((ending.code(), ending.message()), (Code::Cancelled, "Timeout expired"))?;
        }
        same(took > Duration::from_millis(250) && took < Duration::from_secs(5), true)?;
        self.expect("Ended", "late", "ended").await?;
        Ok(format!("{} ms, {:?}", took.as_millis(), ending.code()))
    }

    async fn metadata(self) -> Outcome {
        let mut request = request("x-interop");
        let headers: &mut MetadataMap = request.metadata_mut();
        headers.insert("x-interop", "value 1".parse()?);
        let binary: Vec<u8> = (0..=255).collect();
        headers.insert_bin("x-interop-bin", MetadataValue::from_bytes(&binary));
        same(self.unary("Metadata", request).await?, Bytes::from("value 1"))?;
        Ok(String::new())
    }

    async fn large_header(self) -> Outcome {
        let value = "x".repeat(LARGE_HEADER_SIZE);
        let mut request = request("x-large");
        request.metadata_mut().insert("x-large", value.parse()?);
        same(self.unary("Metadata", request).await?, Bytes::from(value))?;
        Ok(format!("{LARGE_HEADER_SIZE} bytes"))
    }

    async fn gzip(mut self) -> Outcome {
        self.grpc = self.grpc.send_compressed(CompressionEncoding::Gzip);
        self.equal("Compressed", 1_000_000).await
    }

    async fn refused(self, method: &'static str, code: Code, message: Option<&str>) -> Outcome {
        match self.unary(method, request("")).await {
            Ok(_) => Err("the call succeeded".into()),
            Err(status) => {
                same(status.code(), code)?;
                same(status.message(), message.unwrap_or(status.message()))?;
                Ok(status.message().into())
            }
        }
    }

    async fn many(self) -> Outcome {
        let peer = self.unary("Peer", request("")).await?;
        for number in 0..1000 {
            self.expect("Echo", number.to_string(), number.to_string()).await?;
        }
        self.expect("Peer", "", peer).await?;
        Ok("1000 calls".into())
    }

    async fn concurrent(self) -> Outcome {
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..100 {
            let client = self.clone();
            calls.spawn(async move { client.expect("Together", number.to_string(), number.to_string()).await });
        }
        for outcome in calls.join_all().await {
            outcome?;
        }
        Ok("100 calls".into())
    }
}

async fn report(name: &str, run: impl Future<Output = Outcome>) {
    let outcome = tokio::time::timeout(2 * PATIENCE, run)
        .await
        .unwrap_or_else(|_| Err("no end".into()));
    let ok = outcome.is_ok();
    let detail = outcome.unwrap_or_else(|error| error.to_string());
    println!("{}", serde_json::json!({"case": name, "ok": ok, "detail": detail}));
}

async fn connect() -> Result<Channel, Failure> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().ok_or("target [ca]")?;
    let endpoint = match arguments.next() {
        None => Endpoint::from_shared(format!("http://{target}"))?,
        Some(ca) => Endpoint::from_shared(format!("https://{target}"))?
            .tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(std::fs::read(ca)?)))?,
    };
    Ok(endpoint.connect().await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let grpc = Grpc::new(connect().await?).max_decoding_message_size(2 * LARGE_SIZE);
    let client = || Client { grpc: grpc.clone() };
    report("unary", client().equal("Echo", 1000)).await;
    report("empty", client().equal("Echo", 0)).await;
    report("server stream", client().server_stream()).await;
    report("bidi", client().bidi()).await;
    report("early end", client().early_end()).await;
    report("cancel", client().cancel()).await;
    report("deadline", client().deadline()).await;
    report("4 MiB", client().equal("Echo", LARGE_SIZE)).await;
    report("metadata", client().metadata()).await;
    report("large header", client().large_header()).await;
    report("gzip", client().gzip()).await;
    report("unknown", client().refused("Unknown", Code::Unimplemented, None)).await;
    report(
        "error",
        client().refused("Refuse", Code::InvalidArgument, Some(REFUSAL)),
    )
    .await;
    report("1000 calls", client().many()).await;
    report("100 at once", client().concurrent()).await;
    Ok(())
}
