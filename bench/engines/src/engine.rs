//! The engines behind one interface: a transaction of some gets and puts, and a flush of all before it.

use std::path::Path;

use fjall::{KeyspaceCreateOptions, PersistMode, SingleWriterTxDatabase, SingleWriterTxKeyspace};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use vellum_live::{CommitSequence, EmbeddedStore, LiveStore, NoDurabilityHooks};

/// Result of anything here: a failure ends the run.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// An ordered key-value store with transactions.
pub trait Engine {
    /// Reads these keys, then sets those, all or nothing. It survives the death of the process as far as the engine
    /// promises that without a flush.
    fn transact(&self, reads: &[&[u8]], writes: &[(&[u8], &[u8])]) -> Result<()>;

    /// Everything before survives a loss of power.
    fn flush(&self) -> Result<()>;

    /// The value under a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
}

/// Opens an engine by its name, in a directory of its own.
pub fn open(name: &str, dir: &Path) -> Result<Box<dyn Engine>> {
    std::fs::create_dir_all(dir)?;
    Ok(match name {
        "vellum" => Box::new(Vellum(EmbeddedStore::open(dir, NoDurabilityHooks)?)),
        "redb" => Box::new(Redb::open(dir)?),
        "fjall" => Box::new(Fjall::open(dir)?),
        _ => return Err("no such engine".into()),
    })
}

struct Vellum(EmbeddedStore);

impl Engine for Vellum {
    fn transact(&self, reads: &[&[u8]], writes: &[(&[u8], &[u8])]) -> Result<()> {
        self.0.run_transaction(&mut |transaction| {
            for key in reads {
                transaction.get(key)?;
            }
            for (key, value) in writes {
                transaction.set_key(key, (*value).into());
            }
            Ok(())
        })?;
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        // An empty transaction has the sequence that stands for all before it.
        let last: CommitSequence = self.0.run_transaction(&mut |_| Ok(()))?;
        Ok(self.0.wait_until_durable(last)?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.0.get(key)?.map(|value| value.to_vec()))
    }
}

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("live");

struct Redb(Database);

impl Redb {
    fn open(dir: &Path) -> Result<Self> {
        let database = Database::create(dir.join("live.redb"))?;
        let transaction = database.begin_write()?;
        transaction.open_table(TABLE)?;
        transaction.commit()?;
        Ok(Self(database))
    }

    fn commit(&self, reads: &[&[u8]], writes: &[(&[u8], &[u8])], durability: Durability) -> Result<()> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(durability)?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for key in reads {
                table.get(*key)?;
            }
            for (key, value) in writes {
                table.insert(*key, *value)?;
            }
        }
        Ok(transaction.commit()?)
    }
}

impl Engine for Redb {
    fn transact(&self, reads: &[&[u8]], writes: &[(&[u8], &[u8])]) -> Result<()> {
        self.commit(reads, writes, Durability::None)
    }

    fn flush(&self) -> Result<()> {
        // A commit that is durable makes those before it durable.
        self.commit(&[], &[], Durability::Immediate)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.0.begin_read()?.open_table(TABLE)?;
        Ok(table.get(key)?.map(|value| value.value().to_vec()))
    }
}

struct Fjall {
    database: SingleWriterTxDatabase,
    keyspace: SingleWriterTxKeyspace,
}

impl Fjall {
    fn open(dir: &Path) -> Result<Self> {
        let database = SingleWriterTxDatabase::builder(dir.join("live")).open()?;
        let keyspace = database.keyspace("live", KeyspaceCreateOptions::default)?;
        Ok(Self { database, keyspace })
    }
}

impl Engine for Fjall {
    fn transact(&self, reads: &[&[u8]], writes: &[(&[u8], &[u8])]) -> Result<()> {
        let mut transaction = self.database.write_tx();
        for key in reads {
            fjall::Readable::get(&transaction, &self.keyspace, key)?;
        }
        for (key, value) in writes {
            transaction.insert(&self.keyspace, *key, *value);
        }
        Ok(transaction.commit()?)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.keyspace.get(key)?.map(|value| value.to_vec()))
    }
}
