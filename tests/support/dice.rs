//! Numbers that look random and are the same for the same seed (splitmix64).

/// A source of such numbers.
pub struct Dice(u64);

impl Dice {
    /// A source with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number below an end.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 33).unwrap_or_default() % end
    }
}
