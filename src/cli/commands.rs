//! The commands: one request each (lists: one per page), one answer to print.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::cli::args::{Cli, Command, Form, WaitArgs};
use crate::cli::client::{Agent, Client};
use crate::cli::out::Out;
use crate::cli::{Failure, files, nodes, render, text, watch};
use crate::model::Timestamp;
use crate::proto::REQUEST_LIMIT;
use crate::proto::agent as pb;
use crate::proto::json::to_value;

/// A connected session.
struct Session {
    agent: Agent,
    client: Client,
    out: Out,
    /// Unix seconds.
    now: i64,
}

type Done = Result<(), Failure>;

/// Carries out the command.
pub async fn execute(cli: Cli) -> Done {
    let agent = Agent::new(&cli)?;
    let out = Out::new(cli.output);
    // What does not need the agent is checked before it is asked.
    let puts = match &cli.command {
        Command::Put { key, file, .. } => vec![pb::apply_request::Put { key: key.clone(), value: files::value(file)? }],
        Command::Apply { file, .. } => files::puts(file)?,
        _ => Vec::new(),
    };
    if let Command::Status { names, watch: true } = &cli.command {
        return watch::watch(&agent, out, names).await;
    }
    let client = agent.connect().await?;
    let mut session = Session { agent, client, out, now: Timestamp::from(SystemTime::now()).seconds() };
    match cli.command {
        Command::Put { wait, .. } | Command::Apply { wait, .. } => session.write(puts, Vec::new(), wait).await,
        Command::Del { key, wait } => session.write(Vec::new(), vec![key], wait).await,
        Command::Get { key } => session.get(key).await,
        Command::Ls { prefix } => session.ls(prefix).await,
        Command::Status { names, .. } if names.is_empty() => session.overview().await,
        Command::Status { names, .. } => session.status(names).await,
        Command::Interfaces { prefix, state, namespace } => session.interfaces(prefix, &state, namespace).await,
        Command::Namespaces => session.namespaces().await,
        Command::Index { name, microservice } => session.index(name, microservice).await,
        Command::Nodes => nodes::list(&session.agent, &mut session.client, session.out, session.now).await,
        Command::Node(command) => nodes::one(&session.agent, &mut session.client, session.out, command).await,
        Command::History { limit } => session.history(limit).await,
        Command::Resync { accept_removals } => session.resync(accept_removals).await,
        Command::Adopt { name } => session.adopt(name).await,
    }
}

fn list<M: prost::Message + prost::Name>(items: &[M]) -> Value {
    items.iter().map(to_value).collect()
}

impl Session {
    async fn write(&mut self, puts: Vec<pb::apply_request::Put>, deletes: Vec<String>, wait: WaitArgs) -> Done {
        let timeout = |d: Duration| prost_types::Duration::try_from(d).ok();
        let waited = wait.wait.then(|| pb::Wait { timeout: timeout(wait.timeout) });
        let request = pb::ApplyRequest { puts, deletes: deletes.clone(), wait: waited };
        let size = prost::Message::encoded_len(&request);
        if size > REQUEST_LIMIT {
            let sentence =
                format!("{size} bytes are too much for one request, {REQUEST_LIMIT} are allowed; apply the files in several parts");
            return Err(Failure::Usage(sentence));
        }
        let answer = self.client.config.apply(request).await.map_err(|s| self.agent.failure(&s))?.into_inner();
        let line = |out: &Out, r: &pb::WriteResult| {
            let key = text::safe(&r.key);
            match &r.status {
                _ if answer.revision == 0 => format!("{key}: was not there\n"),
                _ if !wait.wait => format!("{key}: revision {}\n", answer.revision),
                Some(status) => format!("{key}: {}\n", render::state_line(out, status)),
                None if r.node.is_some() => {
                    format!("{key}: {}\n", r.node.iter().map(|node| nodes::state_line(out, node)).collect::<String>())
                }
                None if deletes.is_empty() => format!("{key}: revision {}\n", answer.revision),
                None => format!("{key}: removed\n"),
            }
        };
        self.out.show(|| to_value(&answer), |out| answer.results.iter().map(|r| line(out, r)).collect())?;
        let bad =
            |state: pb::State| matches!(state, pb::State::Invalid | pb::State::Failed | pb::State::Retrying | pb::State::Unimplemented);
        let state = |r: &pb::WriteResult| r.status.as_ref().map(|s| s.state()).or(r.node.as_ref().map(|s| s.state()));
        let failed = answer.results.iter().filter(|r| wait.wait && state(r).is_some_and(bad)).count();
        // Waiting for something (PENDING) is not a failure: what is waited for may be the next thing that the user writes.
        match failed {
            0 => Ok(()),
            // The lines above say it all.
            _ if self.out.form == Form::Table => Err(Failure::Refused(String::new())),
            n => Err(Failure::Refused(format!("{n} of {} keys are not configured", answer.results.len()))),
        }
    }

    async fn get(&mut self, key: String) -> Done {
        let item = self.client.config.get(pb::GetRequest { key }).await.map_err(|s| self.agent.failure(&s))?.into_inner();
        if self.out.form == Form::Table && !Out::terminal() {
            return Out::raw(&item.value);
        }
        self.out.show(|| key_value(&item), |_| text::safe_lines(&String::from_utf8_lossy(&item.value)))
    }

    async fn ls(&mut self, prefix: String) -> Done {
        let mut items = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = pb::ListRequest { prefix: prefix.clone(), page_size: 0, page_token };
            let page = self.client.config.list(request).await.map_err(|s| self.agent.failure(&s))?.into_inner();
            items.extend(page.items);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        let lines = |_: &Out| items.iter().map(|i| text::safe(&i.key) + "\n").collect();
        self.out.show(|| items.iter().map(key_value).collect(), lines)
    }

    async fn all_interfaces(&mut self, mut request: pb::ListInterfacesRequest) -> Result<Vec<pb::InterfaceStatus>, Failure> {
        let mut all = Vec::new();
        loop {
            let page = self.client.status.list_interfaces(request.clone()).await.map_err(|s| self.agent.failure(&s))?.into_inner();
            all.extend(page.interfaces);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    async fn overview(&mut self) -> Done {
        let agent = self.client.status.get_agent(pb::GetAgentRequest {}).await.map_err(|s| self.agent.failure(&s))?.into_inner();
        let all = self.all_interfaces(pb::ListInterfacesRequest::default()).await?;
        let value = || json!({ "agent": to_value(&agent), "interfaces": list(&all) });
        self.out.show(value, |out| render::overview(out, &agent, &all, self.now))
    }

    async fn status(&mut self, names: Vec<String>) -> Done {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in names {
            match self.client.status.get_interface(pb::GetInterfaceRequest { name }).await {
                Ok(answer) => found.push(answer.into_inner()),
                Err(status) if status.code() == tonic::Code::NotFound => missing.push(status.message().to_owned()),
                Err(status) => return Err(self.agent.failure(&status)),
            }
        }
        let single = found.len() + missing.len() == 1;
        let value = || if single { found.iter().map(to_value).next().unwrap_or_default() } else { list(&found) };
        let blocks = |out: &Out| found.iter().map(|s| render::interface(out, s, self.now)).collect::<Vec<_>>().join("\n");
        if !(single && found.is_empty()) {
            self.out.show(value, blocks)?;
        }
        if missing.is_empty() { Ok(()) } else { Err(Failure::Refused(missing.join("; "))) }
    }

    async fn interfaces(&mut self, prefix: String, states: &[String], namespace: Option<String>) -> Done {
        let state = |word: &String| {
            let state = pb::State::from_str_name(&word.to_uppercase());
            state.map(i32::from).ok_or_else(|| {
                Failure::Usage(format!("`{word}` is no state; states are CONFIGURED, PENDING, INVALID, FAILED, RETRYING and others"))
            })
        };
        let states = states.iter().map(state).collect::<Result<_, _>>()?;
        let namespace = namespace.map(|reference| pb::NamespaceFilter { reference, ..Default::default() });
        let request = pb::ListInterfacesRequest { states, namespace, prefix, ..Default::default() };
        let all = self.all_interfaces(request).await?;
        self.out.show(|| list(&all), |out| render::interfaces(out, &all, self.now))
    }

    async fn namespaces(&mut self) -> Done {
        let answer =
            self.client.status.list_namespaces(pb::ListNamespacesRequest {}).await.map_err(|s| self.agent.failure(&s))?.into_inner();
        self.out.show(|| list(&answer.namespaces), |out| render::namespaces(out, &answer.namespaces, self.now))
    }

    async fn index(&mut self, name: Option<String>, microservice: Option<String>) -> Done {
        if let Some(name) = name {
            let request = pb::LookupIndexRequest { by: Some(pb::lookup_index_request::By::Name(name)) };
            let entry = self.client.status.lookup_index(request).await.map_err(|s| self.agent.failure(&s))?.into_inner();
            return self.out.show(|| to_value(&entry), |out| render::index(out, std::slice::from_ref(&entry)));
        }
        let mut request = pb::ListIndexRequest { microservice: microservice.unwrap_or_default(), ..Default::default() };
        let mut all = Vec::new();
        loop {
            let page = self.client.status.list_index(request.clone()).await.map_err(|s| self.agent.failure(&s))?.into_inner();
            all.extend(page.entries);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                return self.out.show(|| list(&all), |out| render::index(out, &all));
            }
        }
    }

    async fn history(&mut self, limit: u32) -> Done {
        let answer =
            self.client.status.list_history(pb::ListHistoryRequest { limit }).await.map_err(|s| self.agent.failure(&s))?.into_inner();
        self.out.show(|| list(&answer.passes), |_| render::history(&answer.passes, self.now))
    }

    async fn resync(&mut self, accept_removals: bool) -> Done {
        self.client.config.resync(pb::ResyncRequest { accept_removals }).await.map_err(|s| self.agent.failure(&s))?;
        self.out.show(|| json!({}), |_| "the agent reads the kernel and the store again\n".to_owned())
    }

    async fn adopt(&mut self, name: String) -> Done {
        self.client.config.adopt(pb::AdoptRequest { name: name.clone() }).await.map_err(|s| self.agent.failure(&s))?;
        let name = text::safe(&name);
        self.out.show(|| json!({}), |_| format!("the agent was asked to adopt `{name}`; `vnfctl status {name}` tells the outcome\n"))
    }
}

/// A key with its value: as JSON where it is JSON, as text where it is text, else as the numbers of its bytes.
fn key_value(item: &pb::KeyValue) -> Value {
    let value = serde_json::from_slice(&item.value).unwrap_or_else(|_| match std::str::from_utf8(&item.value) {
        Ok(text) => Value::from(text),
        Err(_) => Value::from(item.value.clone()),
    });
    json!({ "key": item.key, "value": value, "create_revision": item.create_revision, "mod_revision": item.mod_revision })
}
