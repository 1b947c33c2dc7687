//! Which names of the agent's own namespace are reserved: told by another thread, looked at before each plan.

use std::sync::{Arc, PoisonError, RwLock};

use crate::model::ReservedNames;

/// The reserved names as they are now.
#[derive(Debug, Default)]
pub struct Reservations(RwLock<Arc<ReservedNames>>);

impl Reservations {
    /// Reserves these names and no others. From its return on no plan is made without them: a link that comes to its name after that is never planned
    /// with. Whether that is news, of which the inbox must be told.
    #[must_use]
    pub fn set(&self, names: ReservedNames) -> bool {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let news = **now != names;
        if news {
            *now = Arc::new(names);
        }
        news
    }

    /// What is reserved.
    #[must_use]
    pub fn get(&self) -> Arc<ReservedNames> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
