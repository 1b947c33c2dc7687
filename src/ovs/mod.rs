//! Open vSwitch: the ports of NICs in its database, and the flows between them.
//!
//! Two narrow contracts: [`Switch`] is the database (bridge, ports, what is remembered beside them), [`FlowSink`] the flow tables of the bridge. Both block their caller, each call within a limit, and neither chooses, orders or
//! repeats anything: that is for the external node. What happens without being asked is told to an [`OvsSink`].
//!
//! Only what carries our mark is ever changed: ports whose `external_ids` name our label, and flows with our cookie. An outcome that is not known is
//! an answer of its own ([`OvsError::Unknown`]): the caller reads again, and what it reads then is final.

mod client;
mod dpctl;
mod dump;
mod error;
mod flows;
mod frame;
mod glance;
mod ids;
mod message;
mod monitor;
mod ofctl;
mod presence;
mod rows;
mod session;
mod stream;
mod transaction;
mod value;
mod view;

use std::time::Duration;

pub use client::{OvsClient, OvsOptions};
pub use dpctl::Dpctl;
pub use error::OvsError;
pub use flows::{Cookie, Flow, FlowDifference, FlowSet, PairNumbers, Standing, Table};
pub use glance::pairs_of;
pub use ids::{Claim, Notes, Role};
pub use ofctl::{FlowError, FlowSink, Ofctl, management_socket};
pub use presence::SwitchWatch;
pub use transaction::NewPair;
pub use value::RowId;
pub use view::{BridgeView, OfPort, OvsEvent, OvsSink, PairRows, PairView, PortState, PortView, SwitchView};

use crate::model::{Datapath, MacAddr};

/// What a port that Open vSwitch cannot use means to who waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// It is the end: the ports are new, and so is the failure.
    Ends,
    /// It may pass: Open vSwitch tries again by itself as devices come and go (after a reboot, the NIC has yet to be renamed).
    MayPass,
}

/// The database of Open vSwitch, as far as one bridge and the ports of one agent on it go. Names are those of devices.
///
/// Every call may fail with [`OvsError::Unreachable`]; those that change something also with [`OvsError::Unknown`].
pub trait Switch: Send + Sync + 'static {
    /// What holds now: everything that was asked before, by whomever, is in it. After [`OvsError::Unknown`] it tells what came of it, and nothing
    /// that was asked before takes effect later.
    ///
    /// # Errors
    /// [`OvsError`].
    fn read(&self) -> Result<SwitchView, OvsError>;

    /// As [`Switch::read`], by who has something better to do than to wait longer than this.
    ///
    /// # Errors
    /// [`OvsError`].
    fn read_within(&self, limit: Duration) -> Result<SwitchView, OvsError>;

    /// Lets a pair be known by these rows from now on, also where their ids do not say that they are ours; `None`: by what they say alone. Nothing is asked of
    /// the database.
    fn know(&self, host: &str, rows: Option<&PairRows>);

    /// Makes the bridge if it is not there; lets it speak the version of OpenFlow that flows need. A bridge that is there keeps its datapath.
    ///
    /// # Errors
    /// [`OvsError::Taken`] when something else has the name.
    fn ensure_bridge(&self, datapath: Datapath) -> Result<BridgeView, OvsError>;

    /// Makes both ports at once, and returns their rows. Open vSwitch takes them over some time later: see [`Switch::wait_ready`].
    ///
    /// # Errors
    /// [`OvsError::Taken`], [`OvsError::NoBridge`].
    fn create_pair(&self, pair: &NewPair) -> Result<PairRows, OvsError>;

    /// Removes what there is of the pair with this host port, both ports at once; nothing is done when there is nothing.
    ///
    /// # Errors
    /// [`OvsError`].
    fn delete_pair(&self, host: &str) -> Result<(), OvsError>;

    /// Replaces what is remembered beside both ports, and writes whose they are where they do not say it any more.
    ///
    /// # Errors
    /// [`OvsError::NoPort`].
    fn write_notes(&self, host: &str, notes: &Notes) -> Result<(), OvsError>;

    /// Waits until both ports work and the internal one has this address (its number is known some milliseconds earlier); returns the numbers of the host
    /// port and the uplink.
    ///
    /// # Errors
    /// [`OvsError::PortFailed`], [`OvsError::NoPort`], [`OvsError::NotYet`].
    fn wait_ready(&self, host: &str, mac: MacAddr, failing: Failing, limit: Duration) -> Result<(OfPort, OfPort), OvsError>;

    /// Waits until nothing of the pair is in the database and `ovs-vswitchd` has let go of the devices. The kernel may need some more
    /// milliseconds to remove the internal one.
    ///
    /// # Errors
    /// [`OvsError::NotYet`].
    fn wait_gone(&self, host: &str, limit: Duration) -> Result<(), OvsError>;

    /// Waits until `ovs-vswitchd` has followed everything that the database says: whether it works at all.
    ///
    /// # Errors
    /// [`OvsError::NotYet`].
    fn wait_followed(&self, limit: Duration) -> Result<(), OvsError>;
}
