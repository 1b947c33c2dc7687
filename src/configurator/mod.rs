//! The single locked configurator: desired and observed state, a pure plan, a batched apply, a read-back, statuses.

pub mod book;
pub mod published;
