//! A session: each line of the input is `id TAB command TAB --option TAB value ...`. A command is a task of its own and
//! its events carry its id; the last one is "done" or "failed". `stop --target id` ends a running consumer.

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::io::BufRead;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{json, Value};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Prints the events of one command.
#[derive(Clone)]
pub struct Events {
    id: String,
}

impl Events {
    pub fn print(&self, event: &str, fields: Value) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = json!({"id": self.id, "event": event, "at": now.as_millis() as u64});
        if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
            line.extend(fields);
        }
        println!("{line}");
    }
}

pub struct Command {
    pub name: String,
    pub events: Events,
    options: HashMap<String, String>,
    stopped: watch::Receiver<bool>,
}

impl Command {
    pub fn has(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    pub fn text(&self, name: &str, otherwise: &str) -> String {
        self.options.get(name).map_or(otherwise, String::as_str).to_string()
    }

    pub fn number(&self, name: &str, otherwise: u64) -> u64 {
        self.options.get(name).map_or(otherwise, |value| value.parse().expect("a number"))
    }

    pub fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Waits that long, or less if the command is stopped.
    pub async fn stopped_within(&self, time: Duration) {
        let mut stopped = self.stopped.clone();
        let _ = tokio::time::timeout(time, stopped.wait_for(|stopped| *stopped)).await;
    }
}

/// Carries out the lines of the input with `run_one`, until the input ends.
pub fn run<F, R>(run_one: F)
where
    F: Fn(Command) -> R + Copy + Send + 'static,
    R: Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let runtime = Runtime::new().expect("a runtime");
    let mut stops: HashMap<String, watch::Sender<bool>> = HashMap::new();
    let mut tasks = Vec::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<String> = line.split('\t').map(str::to_string).collect();
        let options: HashMap<String, String> = words[2..]
            .chunks_exact(2)
            .map(|pair| (pair[0].trim_start_matches("--").to_string(), pair[1].clone()))
            .collect();
        let events = Events { id: words[0].clone() };
        if words[1] == "stop" {
            if let Some(stop) = options.get("target").and_then(|target| stops.get(target)) {
                let _ = stop.send(true);
            }
            events.print("done", json!({}));
            continue;
        }
        let (stop, stopped) = watch::channel(false);
        stops.insert(words[0].clone(), stop);
        let command = Command { name: words[1].clone(), events: events.clone(), options, stopped };
        let running = run_one(command);
        tasks.push(runtime.spawn(async move {
            match running.await {
                Ok(()) => events.print("done", json!({})),
                Err(error) => events.print("failed", json!({"error": "Error", "text": error.to_string()})),
            }
        }));
    }
    for stop in stops.values() {
        let _ = stop.send(true);
    }
    for task in tasks {
        let _ = runtime.block_on(task);
    }
}
