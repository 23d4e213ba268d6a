//! skeleton
use crate::batch::Row;
use crate::ids::BlockId;
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables<'a>(pub(crate) &'a [BlockId]);
impl<'a> Tables<'a> {
    pub(crate) fn row(&self, _row: &Row) -> &'a [BlockId] {
        self.0
    }
}
