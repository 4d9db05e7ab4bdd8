//! Hidden commands, which the program that manages a cluster runs as processes of their own: they enter namespaces, which a
//! process with threads cannot do. Every such program has them among its commands.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Subcommand;
use harness::{node_id::NodeId, paths::Paths, scratch};

use super::{network, node::namespaces};

/// A hidden command.
#[derive(Subcommand)]
pub enum Hidden {
    /// `scratch`: hidden.
    #[command(hide = true)]
    Scratch {
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// `network-hold`: hidden.
    #[command(hide = true)]
    NetworkHold {
        /// The API server's port.
        #[arg(long)]
        port: u16,
    },
    /// `network-exec`: hidden.
    #[command(hide = true)]
    NetworkExec {
        /// The process that holds the network.
        #[arg(long)]
        holder: u32,
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// `node-start`: hidden.
    #[command(hide = true)]
    NodeStart {
        /// Which node.
        #[arg(long)]
        number: u8,
        /// The process that holds the network.
        #[arg(long)]
        network: u32,
    },
    /// `node-init`: hidden.
    #[command(hide = true)]
    NodeInit {
        /// Which node.
        #[arg(long)]
        number: u8,
    },
    /// `node-exec`: hidden.
    #[command(hide = true)]
    NodeExec {
        /// Which node.
        #[arg(long)]
        number: u8,
        /// The process that holds the node.
        #[arg(long)]
        process: u32,
        /// Leave the command running, with its output in this file.
        #[arg(long)]
        log: Option<PathBuf>,
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

impl Hidden {
    /// Runs the command, and returns this program's exit code. It does not catch interrupts, which takes a thread.
    pub fn run(self, paths: &Paths) -> Result<ExitCode> {
        match self {
            Self::Scratch { command } => return scratch::run(&command),
            Self::NetworkHold { port } => network::hold(paths, port)?,
            Self::NetworkExec { holder, command } => network::exec(holder, &command)?,
            Self::NodeStart { number, network } => namespaces::start(paths, NodeId::numbered(number), network)?,
            Self::NodeInit { number } => namespaces::init(paths, NodeId::numbered(number))?,
            Self::NodeExec { number, process, log, command } => {
                return namespaces::exec(paths, NodeId::numbered(number), process, log.as_deref(), &command);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
