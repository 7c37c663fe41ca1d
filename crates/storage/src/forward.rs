//! Engines around other engines: what watches an engine, or breaks one on purpose, changes a method or two and passes
//! the others on.

/// The methods of a [`StorageEngine`](crate::StorageEngine) that go to the engine in the field `$inner` as they are:
/// `forward_engine!(inner: get, update, close);`
///
/// Belongs in an `impl StorageEngine`. The caller's crate depends on `bytes`, `model` and `runtime`, whose types the
/// methods name.
#[macro_export]
macro_rules! forward_engine {
    ($inner:tt: $($method:ident),+ $(,)?) => {
        $($crate::forward_engine!(@$method $inner);)+
    };
    (@get $inner:tt) => {
        fn get(
            &self,
            partition: ::model::PartitionId,
            token: ::model::Token,
            key: &[u8],
        ) -> Result<Option<::bytes::Bytes>, $crate::StorageError> {
            self.$inner.get(partition, token, key)
        }
    };
    (@read $inner:tt) => {
        fn read(
            &self,
            partition: ::model::PartitionId,
            token: ::model::Token,
            key: &[u8],
            visit: &mut dyn FnMut(&::bytes::Bytes),
        ) -> Result<bool, $crate::StorageError> {
            self.$inner.read(partition, token, key, visit)
        }
    };
    (@update $inner:tt) => {
        fn update<'a>(
            &self,
            partition: ::model::PartitionId,
            token: ::model::Token,
            key: &[u8],
            change: &mut dyn FnMut(Option<&::bytes::Bytes>) -> $crate::Change<'a>,
        ) -> Result<Option<$crate::Commit>, $crate::StorageError> {
            self.$inner.update(partition, token, key, change)
        }
    };
    (@acknowledges_at_once $inner:tt) => {
        fn acknowledges_at_once(&self) -> bool {
            self.$inner.acknowledges_at_once()
        }
    };
    (@repairable $inner:tt) => {
        fn repairable(&self) -> Option<&dyn $crate::RepairableEngine> {
            self.$inner.repairable()
        }
    };
    (@room $inner:tt) => {
        fn room(&self) -> Result<$crate::Room, $crate::StorageError> {
            self.$inner.room()
        }
    };
    (@durable $inner:tt) => {
        fn durable(&self, commit: $crate::Commit) -> $crate::Durable {
            self.$inner.durable(commit)
        }
    };
    (@sync $inner:tt) => {
        fn sync(&self) -> ::runtime::BoxFuture<'static, Result<(), $crate::StorageError>> {
            self.$inner.sync()
        }
    };
    (@position $inner:tt) => {
        fn position(&self) -> $crate::Commit {
            self.$inner.position()
        }
    };
    (@scan $inner:tt) => {
        fn scan(
            &self,
            partition: ::model::PartitionId,
            after: Option<&$crate::ScanCursor>,
            limit: $crate::ScanLimit,
        ) -> Result<$crate::ScanPage, $crate::StorageError> {
            self.$inner.scan(partition, after, limit)
        }
    };
    (@walk $inner:tt) => {
        fn walk(
            &self,
            partition: ::model::PartitionId,
            tokens: ::std::ops::RangeInclusive<::model::Token>,
            visit: &mut dyn FnMut(::model::Token, $crate::Met<'_>) -> ::std::ops::ControlFlow<()>,
        ) -> Result<(), $crate::StorageError> {
            self.$inner.walk(partition, tokens, visit)
        }
    };
    (@find $inner:tt) => {
        fn find(
            &self,
            partition: ::model::PartitionId,
            token: ::model::Token,
            fingerprint: u32,
        ) -> Result<Vec<(::bytes::Bytes, ::bytes::Bytes)>, $crate::StorageError> {
            self.$inner.find(partition, token, fingerprint)
        }
    };
    (@partitions $inner:tt) => {
        fn partitions(&self) -> Vec<$crate::Held> {
            self.$inner.partitions()
        }
    };
    (@drop_partition $inner:tt) => {
        fn drop_partition(&self, partition: ::model::PartitionId) -> Result<(), $crate::StorageError> {
            self.$inner.drop_partition(partition)
        }
    };
    (@stats $inner:tt) => {
        fn stats(&self) -> $crate::EngineStats {
            self.$inner.stats()
        }
    };
    (@close $inner:tt) => {
        fn close(&self) -> ::runtime::BoxFuture<'static, Result<(), $crate::StorageError>> {
            self.$inner.close()
        }
    };
}
