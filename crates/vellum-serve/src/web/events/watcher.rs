//! Looks for what listeners are told of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{EventHub, EventKind};
use crate::web::actions::{ActionState, approvals_json};
use crate::web::answer::ApiError;
use crate::web::api::{ApiState, read_state};
use crate::web::reports::{read_live, verify_json};

/// How often it is looked at a store of this machine: three listings of directories.
const EVERY: Duration = Duration::from_secs(1);
/// How often a service is asked, which costs money.
const EVERY_IN_SERVICE: Duration = Duration::from_secs(15);
/// How often listeners are sent something although nothing has changed.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// Looks as long as somebody listens. Never returns.
pub async fn watch_volume(hub: Arc<EventHub>, api: Arc<ApiState>, actions: Arc<ActionState>) {
    let store = api.volume.describe_store();
    tokio::join!(
        watch_store(&hub, &api),
        watch_machine(&hub, &api, &actions),
        watch_figures(&hub, &store, &actions),
        async {
            loop {
                tokio::time::sleep(SIGN_OF_LIFE).await;
                hub.send_sign_of_life();
            }
        }
    );
}

async fn watch_store(hub: &EventHub, api: &Arc<ApiState>) {
    let every = if api.volume.is_in_service() { EVERY_IN_SERVICE } else { EVERY };
    loop {
        hub.wait_for_listeners(false).await;
        // A store that does not answer now may do so later; the page's own questions tell of it meanwhile.
        if let Ok(state) = read_blocking(api, read_state).await {
            hub.tell(EventKind::Changed, &state);
        }
        hub.pause(every).await;
    }
}

/// What is on this machine, and costs no request.
async fn watch_machine(hub: &EventHub, api: &Arc<ApiState>, actions: &ActionState) {
    loop {
        hub.wait_for_listeners(false).await;
        if let Ok(requests) = read_blocking(api, approvals_json).await {
            hub.tell(EventKind::Approvals, &requests);
        }
        hub.tell(EventKind::Job, &describe_job(verify_json(actions)));
        hub.pause(EVERY).await;
    }
}

/// What changes as long as a verification runs, and not any more when it has ended.
fn describe_job(mut answer: Value) -> Value {
    let job = answer["job"].take();
    match job["running"].as_bool() {
        None | Some(true) => json!({ "job": job }),
        // Without the result, which may be long, and without how long ago it was, which is another time each second.
        Some(false) => json!({ "job": { "scope": job["scope"], "begun": job["begun"], "running": false } }),
    }
}

async fn watch_figures(hub: &EventHub, store: &str, actions: &ActionState) {
    loop {
        hub.wait_for_listeners(true).await;
        let begun = Instant::now();
        let answer = read_live(actions, store).await;
        hub.tell(EventKind::Live, &answer.unwrap_or_else(|error| json!({ "error": error.to_json() })));
        // A figure is of one second and takes one. Without a mount, or with one that is silent, the answer comes at once.
        hub.pause(EVERY.saturating_sub(begun.elapsed())).await;
    }
}

async fn read_blocking<T: Send + 'static>(
    api: &Arc<ApiState>,
    read: impl FnOnce(&ApiState) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let own = Arc::clone(api);
    let failed =
        |_| ApiError::new(hyper::StatusCode::INTERNAL_SERVER_ERROR, "io", "the volume cannot be read");
    tokio::task::spawn_blocking(move || read(&own)).await.map_err(failed)?
}
