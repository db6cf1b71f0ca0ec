//! A scripted host: its tools note in the ledger that they ran, and take time.

use std::{sync::Arc, time::Duration};

use chappie::{
    content::{Block, ToolCall, ToolResult},
    host::{BoxFuture, CallContext, Host, HostError, HostKind, Inspection},
    sessions::HostFactory,
};
use serde_json::Value;
use tokio::time::sleep;

use super::ledger::{Ledger, outcome};

/// The tool that does something once.
pub(super) const WORK: &str = "work";
/// The tool that only reads.
pub(super) const LOOK: &str = "look";

/// Makes the hosts of one start of a device.
pub(super) fn factory(device: &str, start: u64, ledger: &Ledger) -> HostFactory {
    let (device, ledger) = (device.to_owned(), ledger.clone());
    Arc::new(move |_| Arc::new(Script { device: device.clone(), start, ledger: ledger.clone() }))
}

struct Script {
    device: String,
    start: u64,
    ledger: Ledger,
}

impl Script {
    async fn run(&self, call: ToolCall, context: &CallContext) -> ToolResult {
        let number = |key: &str| call.arguments.get(key).and_then(Value::as_u64).unwrap_or(0);
        let text = if call.name == WORK {
            let piece = number("piece");
            self.ledger.begin(piece, &context.call_id.0, &self.device);
            tokio::select! {
                biased;
                () = context.cancel.cancelled() => {
                    self.ledger.cancelled(piece);
                    "cancelled".to_owned()
                }
                () = sleep(Duration::from_millis(number("ms"))) => {
                    self.ledger.done(piece, self.start);
                    outcome(piece)
                }
            }
        } else {
            "seen".to_owned()
        };
        ToolResult { id: call.id, name: call.name, is_error: false, content: vec![Block::text(text)], details: None }
    }
}

impl Host for Script {
    fn kind(&self) -> HostKind {
        HostKind::Native
    }

    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, HostError>> {
        Box::pin(std::future::ready(Ok(Inspection::default())))
    }

    fn call(self: Arc<Self>, calls: Vec<ToolCall>, context: CallContext) -> BoxFuture<'static, Vec<ToolResult>> {
        Box::pin(async move {
            let mut results = Vec::new();
            for call in calls {
                results.push(self.run(call, &context).await);
            }
            results
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn reads_only(&self, calls: &[ToolCall]) -> bool {
        calls.iter().all(|call| call.name == LOOK)
    }
}
