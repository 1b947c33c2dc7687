//! The vocabulary of the product as values: names, references, wishes, what the kernel shows, states.
//!
//! Pure: no I/O, no clock, no async. Everything else depends on this module and it depends on nothing of ours but the generated messages, so a
//! value that exists here is a legal one: the constructors refuse the rest.

pub mod address;
pub mod bypass;
pub mod decode;
pub mod interface;
pub mod key;
pub mod label;
pub mod mac;
pub mod name;
pub mod netns;
pub mod nic;
pub mod node;
pub mod node_status;
pub mod observed;
pub mod ovs;
pub mod owner;
pub mod request;
pub mod reserved;
pub mod state;
pub mod status;
pub mod time;
pub mod validate;
pub mod vpp;

pub use address::InterfaceAddress;
pub use bypass::{BypassRule, BypassRuleError, Direction, Protocol};
pub use decode::{Decoded, DecodedNode, Outline, decode_interface, decode_node};
pub use interface::{InterfaceKind, InterfaceSpec, TapMode, TapSpec};
pub use key::ConfigKey;
pub use label::AgentLabel;
pub use mac::MacAddr;
pub use name::{HostIfName, InterfaceName};
pub use netns::{NetnsId, NetnsRef, NetnsSlot};
pub use node::{EntityName, NicSelector, NodeSpec};
pub use node_status::{ExternalEntityReference, NodeInterfaceStatus, NodeStatus, Phase};
pub use observed::{IfIndex, LinkId, LinkKind, ObservedAddress, ObservedLink, OperState, PeerLink, TunInfo};
pub use ovs::{Datapath, OvsdbTarget};
pub use owner::{MarkKind, Owner};
pub use request::{ExpectedMark, LinkChange, NewAddress, NewLink, NewTap, RestoredAddress};
pub use reserved::{Reserved, ReservedNames};
pub use state::{FieldError, Reason, State};
pub use status::{InterfaceStatus, NamespaceStatus};
pub use time::Timestamp;
