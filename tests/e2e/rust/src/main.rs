//! Producer and simple consumer of the official Rust client, chosen by the first argument.
//! Speaks the line protocol of tests/e2e/README.md.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io::{self, BufRead};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::prelude::{Engine, BASE64_STANDARD};
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde::Deserialize;
use serde_json::{json, Value};

const LIBRARY: &str = "rocketmq 5.0.0";

/// The library shows only the names of the protocol's codes.
const CODES: &str = "MULTIPLE_RESULTS 30000 BAD_REQUEST 40000 ILLEGAL_ACCESS_POINT 40001 ILLEGAL_TOPIC 40002 \
    ILLEGAL_CONSUMER_GROUP 40003 ILLEGAL_MESSAGE_TAG 40004 ILLEGAL_MESSAGE_KEY 40005 ILLEGAL_MESSAGE_GROUP 40006 \
    ILLEGAL_MESSAGE_PROPERTY_KEY 40007 INVALID_TRANSACTION_ID 40008 ILLEGAL_MESSAGE_ID 40009 \
    ILLEGAL_FILTER_EXPRESSION 40010 ILLEGAL_INVISIBLE_TIME 40011 ILLEGAL_DELIVERY_TIME 40012 \
    INVALID_RECEIPT_HANDLE 40013 MESSAGE_PROPERTY_CONFLICT_WITH_TYPE 40014 UNRECOGNIZED_CLIENT_TYPE 40015 \
    MESSAGE_CORRUPTED 40016 CLIENT_ID_REQUIRED 40017 ILLEGAL_POLLING_TIME 40018 UNAUTHORIZED 40100 \
    PAYMENT_REQUIRED 40200 FORBIDDEN 40300 NOT_FOUND 40400 MESSAGE_NOT_FOUND 40401 TOPIC_NOT_FOUND 40402 \
    CONSUMER_GROUP_NOT_FOUND 40403 REQUEST_TIMEOUT 40800 PAYLOAD_TOO_LARGE 41300 MESSAGE_BODY_TOO_LARGE 41301 \
    PRECONDITION_FAILED 42800 TOO_MANY_REQUESTS 42900 REQUEST_HEADER_FIELDS_TOO_LARGE 43100 \
    MESSAGE_PROPERTIES_TOO_LARGE 43101 INTERNAL_ERROR 50000 INTERNAL_SERVER_ERROR 50001 HA_NOT_AVAILABLE 50002 \
    NOT_IMPLEMENTED 50100 PROXY_TIMEOUT 50400 MASTER_PERSISTENCE_TIMEOUT 50401 SLAVE_PERSISTENCE_TIMEOUT 50402 \
    UNSUPPORTED 50500 VERSION_UNSUPPORTED 50501 VERIFY_FIFO_MESSAGE_UNSUPPORTED 50502 FAILED_TO_CONSUME_MESSAGE 60000";

type Failure = Box<dyn Error>;

/// What a command has as its answer when the library cannot or would not do it: `{"error": …}`.
struct Refusal(Value);

impl From<ClientError> for Refusal {
    fn from(error: ClientError) -> Self {
        let name = error.context().iter().find(|(key, _)| *key == "code");
        let mut words = CODES.split_whitespace();
        let code = name.and_then(|(_, name)| words.find(|word| word == name).and(words.next()));
        let code = code.and_then(|number| number.parse::<i32>().ok());
        Refusal(json!({"error": {"type": "ClientError", "text": error.to_string(), "code": code}}))
    }
}

fn unsupported(feature: &str) -> Refusal {
    let text = format!("{LIBRARY} has no {feature}");
    Refusal(json!({"error": {"type": "Unsupported", "text": text, "code": null}}))
}

type Answer = Result<Value, Refusal>;

fn answered(answer: Answer) -> Value {
    answer.unwrap_or_else(|refusal| refusal.0)
}

/// The fields of every command; each uses its own.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Command {
    command: String,
    messages: Vec<Outgoing>,
    message: Outgoing,
    resolution: String,
    count: i32,
    invisible_s: u64,
    deliveries: Vec<usize>,
}

/// A message as the commands `send` and `send_in_transaction` have it.
#[derive(Default, Deserialize)]
struct Outgoing {
    topic: String,
    body: String,
    tag: Option<String>,
    keys: Vec<String>,
    properties: HashMap<String, String>,
    message_group: Option<String>,
    delivery_ms: Option<i64>,
    priority: Option<i32>,
    lite_topic: Option<String>,
}

impl Outgoing {
    fn builder(self) -> Result<MessageBuilder, Refusal> {
        if self.priority.is_some() {
            return Err(unsupported("priority of messages"));
        }
        if self.lite_topic.is_some() {
            return Err(unsupported("lite topics"));
        }
        let body = BASE64_STANDARD.decode(self.body).expect("bodies are base64");
        let mut builder = MessageBuilder::builder()
            .set_topic(self.topic)
            .set_body(body)
            .set_keys(self.keys)
            .set_properties(self.properties);
        if let Some(tag) = self.tag {
            builder = builder.set_tag(tag);
        }
        if let Some(group) = self.message_group {
            builder = builder.set_message_group(group);
        }
        if let Some(delivery_ms) = self.delivery_ms {
            // the library counts in seconds; the next one, as no message may come too early
            builder = builder.set_delivery_timestamp((delivery_ms + 999).div_euclid(1000));
        }
        Ok(builder)
    }
}

/// Options are `--name value`; a repeated name has several values.
struct Options(HashMap<String, Vec<String>>);

impl Options {
    fn parse(arguments: &[String]) -> Self {
        let mut found: HashMap<String, Vec<String>> = HashMap::new();
        for pair in arguments.chunks_exact(2) {
            let name = pair[0].trim_start_matches("--").to_owned();
            found.entry(name).or_default().push(pair[1].clone());
        }
        Options(found)
    }

    fn text<'a>(&'a self, name: &str, fallback: &'a str) -> &'a str {
        self.0.get(name).map_or(fallback, |values| &values[0])
    }

    fn topics(&self) -> Vec<String> {
        self.0.get("topic").cloned().unwrap_or_default()
    }

    fn client(&self) -> ClientOption {
        let mut client = ClientOption::default();
        client.set_access_url(self.text("endpoint", ""));
        client.set_enable_tls(env::var("CLIENT_TLS").is_ok_and(|value| value == "on"));
        if let (Ok(user), Ok(secret)) = (env::var("CLIENT_USER"), env::var("CLIENT_SECRET")) {
            client.set_access_key(user);
            client.set_secret_key(secret);
        }
        client
    }

    fn filter(&self) -> Result<FilterExpression, Failure> {
        let kind = match self.text("filter-type", "tag") {
            "tag" => FilterType::Tag,
            "sql" => FilterType::Sql,
            other => return Err(format!("unknown filter type: {other}").into()),
        };
        Ok(FilterExpression::new(kind, self.text("filter", "*")))
    }
}

fn now_ms() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the clock is set").as_millis()
}

/// The commands up to `close` or the end of the input.
fn commands() -> impl Iterator<Item = Command> {
    let lines = io::stdin().lock().lines();
    let commands = lines.map(|line| {
        let line = line.expect("the input is readable");
        serde_json::from_str::<Command>(&line).expect("a line is a command")
    });
    commands.take_while(|asked| asked.command != "close")
}

fn unknown(asked: &Command) -> Answer {
    let text = format!("unknown command: {}", asked.command);
    Err(Refusal(json!({"error": {"type": "Unknown", "text": text, "code": null}})))
}

async fn produce(options: Options) -> Result<(), Failure> {
    let asked_about = Arc::new(Mutex::new(Vec::<String>::new()));
    let mut settings = ProducerOption::default();
    settings.set_topics(options.topics());
    let mut producer = match options.text("checker", "") {
        "" => Producer::new(settings, options.client())?,
        name => {
            let resolution = resolution_of(name).ok_or_else(|| format!("unknown checker: {name}"))?;
            let asked_about = Arc::clone(&asked_about);
            let checker = move |_: String, message: MessageView| {
                asked_about.lock().unwrap().push(message.message_id().to_owned());
                resolution()
            };
            Producer::new_transaction_producer(settings, options.client(), Box::new(checker))?
        }
    };
    producer.start().await?;
    println!("{}", json!({"ready": "producer"}));
    for asked in commands() {
        let answer = match asked.command.as_str() {
            "send" => {
                let mut receipts = Vec::new();
                for message in asked.messages {
                    receipts.push(answered(send_one(&producer, message).await));
                }
                Ok(json!({"receipts": receipts}))
            }
            "send_in_transaction" => send_in_transaction(&producer, asked).await,
            "checked" => Ok(json!({"message_ids": *asked_about.lock().unwrap()})),
            "recall" => Err(unsupported("recall of messages")),
            _ => unknown(&asked),
        };
        println!("{}", answered(answer));
    }
    Ok(producer.shutdown().await?)
}

/// What a checker answers; a function, as the library's resolutions cannot be copied.
fn resolution_of(name: &str) -> Option<fn() -> TransactionResolution> {
    match name {
        "commit" => Some(|| TransactionResolution::COMMIT),
        "rollback" => Some(|| TransactionResolution::ROLLBACK),
        "unknown" => Some(|| TransactionResolution::UNKNOWN),
        _ => None,
    }
}

async fn send_one(producer: &Producer, message: Outgoing) -> Answer {
    let message = message.builder()?.build()?;
    let at_ms = now_ms();
    let receipt = producer.send(message).await?;
    Ok(json!({"message_id": receipt.message_id(), "recall_handle": null, "at_ms": at_ms}))
}

async fn send_in_transaction(producer: &Producer, asked: Command) -> Answer {
    let message = asked.message.builder()?.enable_transaction().build()?;
    let at_ms = now_ms();
    let transaction = producer.send_transaction_message(message).await?;
    let answer = json!({"message_id": transaction.message_id(), "at_ms": at_ms});
    match asked.resolution.as_str() {
        "commit" => transaction.commit().await?,
        "rollback" => transaction.rollback().await?,
        _ => {} // left to the checker
    }
    Ok(answer)
}

/// The deliveries so far, by number, so that a command can name one of several of a message.
struct Deliveries {
    consumer: SimpleConsumer,
    topics: Vec<String>,
    filter: FilterExpression,
    messages: Vec<MessageView>,
    received: usize,
}

impl Deliveries {
    /// One topic after the other: other libraries do this by themselves.
    async fn receive(&mut self, asked: &Command) -> Answer {
        let topic = &self.topics[self.received % self.topics.len()];
        self.received += 1;
        let invisible = Duration::from_secs(asked.invisible_s);
        let call = self.consumer.receive_with(topic, &self.filter, asked.count, invisible);
        let mut lines = Vec::new();
        for message in call.await? {
            lines.push(message_line(&message, self.messages.len()));
            self.messages.push(message);
        }
        Ok(json!({"messages": lines}))
    }

    async fn ack(&self, asked: &Command) -> Answer {
        let mut results = Vec::new();
        for number in &asked.deliveries {
            let acknowledged = self.consumer.ack(&self.messages[*number]).await;
            let mut result = answered(acknowledged.map(|()| json!({})).map_err(Refusal::from));
            result["delivery"] = json!(number);
            results.push(result);
        }
        Ok(json!({"results": results}))
    }
}

async fn consume_simply(options: Options) -> Result<(), Failure> {
    let mut settings = SimpleConsumerOption::default();
    settings.set_consumer_group(options.text("group", ""));
    settings.set_topics(options.topics());
    let mut client = options.client();
    client.set_long_polling_timeout(Duration::from_secs(options.text("await-s", "5").parse()?));
    let mut consumer = SimpleConsumer::new(settings, client)?;
    consumer.start().await?;
    println!("{}", json!({"ready": "simple consumer"}));
    let (topics, filter) = (options.topics(), options.filter()?);
    let mut handed = Deliveries { consumer, topics, filter, messages: Vec::new(), received: 0 };
    for asked in commands() {
        let answer = match asked.command.as_str() {
            "receive" => handed.receive(&asked).await,
            "ack" => handed.ack(&asked).await,
            "change_invisible" => Err(unsupported("change of the invisible time")),
            _ => unknown(&asked),
        };
        println!("{}", answered(answer));
    }
    Ok(handed.consumer.shutdown().await?)
}

fn message_line(message: &MessageView, number: usize) -> Value {
    let mut keys = message.keys().to_vec();
    keys.sort();
    json!({
        "message_id": message.message_id(),
        "topic": message.topic(),
        "body": BASE64_STANDARD.encode(message.body()),
        "tag": message.tag(),
        "keys": keys,
        "properties": message.properties(),
        "message_group": message.message_group(),
        "lite_topic": null, // it has none
        "priority": null, // the library does not show it
        "attempt": message.delivery_attempt(),
        "born_ms": message.born_timestamp() * 1000,
        "corrupted": false, // the library does not look
        "at_ms": now_ms(),
        "delivery": number,
    })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (program, more) = arguments.split_first().ok_or("which client?")?;
    let options = Options::parse(more);
    match program.as_str() {
        "producer" => produce(options).await,
        "simple-consumer" => consume_simply(options).await,
        "push-consumer" => {
            println!("{}", answered(Err(unsupported("push consumer"))));
            Err("no push consumer".into())
        }
        other => Err(format!("unknown client: {other}").into()),
    }
}
