//! Drives Apache's gRPC client for Rust, the crate `rocketmq`; the commands and events are those of grpc_client.py.
//!
//! --namesrv is the address of the gRPC port. The client has no TLS configuration, recalls, push consumers or changes of
//! an invisible time; delivery timestamps are whole seconds.

mod session;

use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::json;

use session::Command;

/// Also the deadline of a receive: with less than 5 s, brokers refuse it, as Apache's proxy does.
const AWAIT: Duration = Duration::from_secs(8);
type Done = Result<(), Box<dyn Error + Send + Sync>>;

fn main() {
    session::run(|command| async move {
        match command.name.as_str() {
            "produce" => produce(&command).await,
            "receive" => receive(&command).await,
            other => Err(format!("no such command: {other}").into()),
        }
    });
}

/// --access-key and --secret-key sign the calls.
fn configuration(command: &Command) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(command.text("namesrv", ""));
    option.set_long_polling_timeout(AWAIT);
    if command.has("access-key") {
        option.set_access_key(command.text("access-key", ""));
        option.set_secret_key(command.text("secret-key", ""));
    }
    option
}

/// Sends --n messages; with --end commit, rollback or none as half messages.
async fn produce(command: &Command) -> Done {
    let mut option = ProducerOption::default();
    option.set_topics(vec![command.text("topic", "")]);
    let mut producer = if command.has("end") {
        let (checked, events) = (command.text("checked", "commit"), command.events.clone());
        let check = move |_: String, view: MessageView| {
            events.print("checked", json!({"msgId": view.message_id()}));
            match checked.as_str() {
                "rollback" => TransactionResolution::ROLLBACK,
                _ => TransactionResolution::COMMIT,
            }
        };
        Producer::new_transaction_producer(option, configuration(command), Box::new(check))?
    } else {
        Producer::new(option, configuration(command))?
    };
    producer.start().await?;
    for i in 0..command.number("n", 1) {
        let id = send(command, &producer, i).await?;
        command.events.print("sent", json!({"i": i, "msgId": id, "recallHandle": ""}));
    }
    command.stopped_within(Duration::from_millis(command.number("linger-ms", 0))).await;
    producer.shutdown().await?;
    Ok(())
}

async fn send(command: &Command, producer: &Producer, i: u64) -> Result<String, Box<dyn Error + Send + Sync>> {
    let made = message(command, i).build()?;
    if !command.has("end") {
        return Ok(producer.send(made).await?.message_id().to_string());
    }
    let transaction = producer.send_transaction_message(made).await?;
    let id = transaction.message_id().to_string();
    match command.text("end", "").as_str() {
        "commit" => transaction.commit().await?,
        "rollback" => transaction.rollback().await?,
        _ => (),
    }
    Ok(id)
}

/// One message of a series, with the body PREFIX-i.
fn message(command: &Command, i: u64) -> MessageBuilder {
    let body = format!("{}-{i}", command.text("body", "body"));
    let mut made = MessageBuilder::builder().set_topic(command.text("topic", "")).set_body(body.into_bytes());
    if command.has("tags") {
        made = made.set_tag(command.text("tags", ""));
    }
    if command.has("keys") {
        made = made.set_keys(vec![format!("{}-{i}", command.text("keys", ""))]);
    }
    if command.has("message-group") {
        made = made.set_message_group(command.text("message-group", ""));
    }
    if command.has("delay-ms") {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = now.as_millis() as u64 + command.number("delay-ms", 0);
        made = made.set_delivery_timestamp(at_ms.div_ceil(1_000) as i64);
    }
    if command.has("end") {
        made = made.enable_transaction();
    }
    made
}

/// Receives with a SimpleConsumer, until --until messages are acknowledged. The first --hold-first are not.
async fn receive(command: &Command) -> Done {
    let topic = command.text("topic", "");
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic.clone()]);
    option.set_consumer_group(command.text("group", ""));
    let mut consumer = SimpleConsumer::new(option, configuration(command))?;
    consumer.start().await?;
    command.events.print("started", json!({}));
    let filter = FilterExpression::new(FilterType::Tag, command.text("tags", "*"));
    let batch = command.number("batch", 32) as i32;
    let invisible = Duration::from_millis(command.number("invisible-ms", 10_000));
    let end = Instant::now() + Duration::from_millis(command.number("wait-ms", 60_000));
    let (mut seen, mut acknowledged) = (0, 0);
    while acknowledged < command.number("until", u64::MAX) && Instant::now() < end && !command.is_stopped() {
        let views = match consumer.receive_with(&topic, &filter, batch, invisible).await {
            Err(error) if has_timed_out(&error) => continue,
            received => received?,
        };
        for view in views {
            seen += 1;
            let action = if seen > command.number("hold-first", 0) {
                consumer.ack(&view).await?;
                acknowledged += 1;
                "acknowledged"
            } else {
                "held"
            };
            command.events.print("message", fields_of(&view, action));
        }
    }
    consumer.shutdown().await?;
    Ok(())
}

/// Whether a receive has ended without messages: its deadline is the end of its long polling.
fn has_timed_out(error: &ClientError) -> bool {
    let text = error.to_string();
    text.contains("Timeout expired") || text.contains("deadline")
}

fn fields_of(view: &MessageView, action: &str) -> serde_json::Value {
    json!({
        "action": action,
        "msgId": view.message_id(),
        "topic": view.topic(),
        "body": String::from_utf8_lossy(view.body()),
        "attempt": view.delivery_attempt(),
        "tags": view.tag().unwrap_or(""),
        "keys": view.keys().join(" "),
        "messageGroup": view.message_group().unwrap_or(""),
        "bornTimestamp": view.born_timestamp() * 1_000,
    })
}
