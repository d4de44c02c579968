//! The servers of the contenders. All keep their data in memory, so that disks are not compared.

use std::error::Error;

use quorlock::testbed::Testbed;
use serde::{Deserialize, Serialize};

use crate::etcd_server::{self, EtcdServers};
use crate::postgres::{self, Database};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Redis,
    Postgres,
    Etcd,
}

impl Server {
    /// Returns the package to install; `None` if the server is installed.
    pub(crate) fn missing(self) -> Option<&'static str> {
        match self {
            // The testbed reports what is missing.
            Server::Redis => None,
            Server::Postgres => (!postgres::is_installed()).then_some("postgresql"),
            Server::Etcd => etcd_server::version().is_none().then_some("etcd-server"),
        }
    }
}

#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) redis: Vec<String>,
    pub(crate) postgres: Option<String>,
    pub(crate) etcd: Vec<String>,
}

pub(crate) struct Servers {
    pub(crate) testbed: Testbed,
    database: Option<Database>,
    etcd: Option<EtcdServers>,
}

impl Servers {
    /// Starts Redis, and the others if they are wanted.
    pub(crate) async fn start(wanted: &[Server]) -> Result<Servers, Box<dyn Error>> {
        let testbed = Testbed::builder().arg("appendonly", "no").start().await?;
        let database = match wanted.contains(&Server::Postgres) {
            true => Some(Database::create().await),
            false => None,
        };
        let etcd = match wanted.contains(&Server::Etcd) {
            true => Some(EtcdServers::start().await?),
            false => None,
        };
        Ok(Servers {
            testbed,
            database,
            etcd,
        })
    }

    pub(crate) fn addresses(&self) -> Addresses {
        Addresses {
            redis: self.testbed.urls(),
            postgres: self.database.as_ref().map(Database::address),
            etcd: self
                .etcd
                .as_ref()
                .map(|etcd| etcd.members.clone())
                .unwrap_or_default(),
        }
    }

    pub(crate) async fn describe(&self) -> Result<String, Box<dyn Error>> {
        let info = self.testbed.nodes()[0].command(&["INFO", "server"]).await?;
        let redis = info
            .as_str()
            .and_then(|text| text.lines().find_map(|line| line.strip_prefix("redis_version:")));
        let mut all = vec![format!(
            "5 Redis masters ({})",
            redis.unwrap_or("of unknown version")
        )];
        if let Some(database) = &self.database {
            let row = database
                .connect()
                .await
                .query_one("SHOW server_version", &[])
                .await?;
            let version: &str = row.get(0);
            all.push(format!(
                "PostgreSQL ({})",
                version.split(' ').next().unwrap_or(version)
            ));
        }
        if let (Some(etcd), Some(version)) = (&self.etcd, etcd_server::version()) {
            all.push(format!("{} members of etcd ({version})", etcd.members.len()));
        }
        Ok(all.join(", "))
    }

    pub(crate) async fn shutdown(self) {
        self.testbed.shutdown().await;
    }
}
