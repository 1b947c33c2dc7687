//! Keys as users write them: short, or whole with this agent's prefix. Another agent's keys are refused, so are writes of what is no wish.

use tonic::Status;

use crate::model::AgentLabel;
use crate::model::key::NODE_CONFIG_PREFIX;

/// Where wishes stand.
const WRITABLE: [&str; 3] = ["linux/config/", OURS, "vpp/"];
/// The one of them below which there is nothing but what this agent reads.
const OURS: &str = "external/config/";

/// The key relative to the agent's prefix; also good for prefixes of keys.
pub fn relative(label: &AgentLabel, key: &str) -> Result<String, Status> {
    if !key.starts_with('/') {
        return Ok(key.to_owned());
    }
    let prefix = label.key_prefix();
    key.strip_prefix(&prefix).map(str::to_owned).ok_or_else(|| {
        let key = key.escape_debug();
        Status::invalid_argument(format!(
            "key `{key}` is not below `{prefix}`: this agent has the label `{label}`; ask the agent whose key it is"
        ))
    })
}

/// The relative key of something that may be written.
pub fn writable(label: &AgentLabel, key: &str) -> Result<String, Status> {
    let relative = relative(label, key)?;
    if WRITABLE.iter().any(|prefix| relative.starts_with(prefix) && relative.len() > prefix.len()) {
        return Ok(relative);
    }
    let what = relative.escape_debug();
    Err(Status::invalid_argument(format!(
        "key `{what}` cannot be written: only keys below `linux/config/`, `external/config/` and `vpp/` hold wishes, such as \
         `linux/config/v1/interface/<name>` or `{NODE_CONFIG_PREFIX}<name>`"
    )))
}

/// The relative key of a wish that may be written. Below a prefix of ours alone, what nobody reads is a slip of the pen; it may be deleted all the same.
pub fn wish(label: &AgentLabel, key: &str) -> Result<String, Status> {
    let relative = writable(label, key)?;
    if relative.starts_with(OURS) && !relative.starts_with(NODE_CONFIG_PREFIX) {
        let what = relative.escape_debug();
        return Err(Status::invalid_argument(format!(
            "nobody reads the key `{what}`: the wish of a node stands under `{NODE_CONFIG_PREFIX}<name>`"
        )));
    }
    Ok(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_key_it_is() {
        let label = AgentLabel::new("vpp1").unwrap();
        for key in ["linux/config/v1/interface/a", "/vnf-agent/vpp1/linux/config/v1/interface/a"] {
            assert_eq!(writable(&label, key).unwrap(), "linux/config/v1/interface/a");
        }
        for other in ["/vnf-agent/vpp10/linux/config/v1/interface/a", "/vnf-agent/vpp1", "/other/vpp1/linux/config/a"] {
            let refused = relative(&label, other).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{other}");
            assert!(refused.message().contains("label `vpp1`"), "{}", refused.message());
        }
        for no_wish in
            ["linux/status/v1/interface/a", "check/status/v1/agent", "", "linux/config/", "vnf-agent/vpp1/linux/config/v1/interface/a"]
        {
            assert_eq!(writable(&label, no_wish).unwrap_err().code(), tonic::Code::InvalidArgument, "{no_wish}");
        }
        for slip in ["external/config/v1/nodes/host1", "external/config/v1/node", "/vnf-agent/vpp1/external/config/v2/node/host1"] {
            assert!(writable(&label, slip).is_ok(), "{slip} may be deleted");
            assert!(wish(&label, slip).unwrap_err().message().contains("`external/config/v1/node/<name>`"), "{slip}");
        }
        for key in ["external/config/v1/node/host1", "linux/config/v1/route/x", "vpp/config/v1/interface/t"] {
            assert_eq!(wish(&label, key).unwrap(), key);
        }
    }
}
