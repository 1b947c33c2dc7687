//! A host's NIC behind Open vSwitch, and back.
//!
//! A NIC that carries the host's own addresses becomes the uplink of a bridge (`eth0~`); an internal port of the bridge takes its name, its hardware
//! address, its addresses and its routes. At no moment may the host be without them: where they are is read anew before every step, and each
//! step either leaves them where they are or puts them in a second place first.
//!
//! - [`selection`]: which NIC a wish means.
//! - [`suitability`]: whether that NIC may be touched at all, and the uplink's name.
//! - [`phase`]: from what kernel, database and journal show to the next step, forwards or backwards. Nothing is remembered.
//! - [`plan`]: the steps as they can be shown before they are taken.
//! - `identify`: which link is the NIC, and which the bridge's port.
//! - [`handover`]: takes the steps.
//! - [`controller`]: from the store's wishes to NICs that stand where they shall, and statuses.
//! - [`attachment`]: what becomes of an attachment that is not confirmed.
//! - [`stand_by`]: the process that undoes what an agent does not confirm.
//! - [`flows`]: the flows of all NICs as one set.
//! - [`rollback`]: that NICs were given back on request.
//! - [`journal`]: the NIC's whole configuration on disk, from before it is touched until it is plain again.

pub mod attachment;
pub mod controller;
pub mod flows;
pub mod handover;
mod identify;
pub mod journal;
mod lock;
pub mod phase;
pub mod plan;
pub mod rollback;
pub mod selection;
pub mod stand_by;
pub mod suitability;
