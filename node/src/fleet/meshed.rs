//! [`Meshed`]: the mesh as the fleet uses it. It is made before the mesh starts, because what the mesh calls needs it.

use std::{net::SocketAddr, sync::OnceLock, time::Duration};

use chappie_mesh::{Mesh, NodeId, Stream, StreamKind};

use super::{feed::Addresses, line::Opener};
use crate::host::BoxFuture;

/// The mesh, once it has started.
#[derive(Debug, Default)]
pub struct Meshed(OnceLock<Mesh>);

impl Meshed {
    /// The mesh has started. Only the first one counts.
    pub fn started(&self, mesh: Mesh) {
        // A node starts its mesh once.
        let _ = self.0.set(mesh);
    }
}

impl Opener for Meshed {
    fn open(&self, peer: NodeId, kind: StreamKind, wait: Duration) -> BoxFuture<'_, Result<Stream, String>> {
        Box::pin(async move {
            let mesh = self.0.get().ok_or("this device's mesh has not started yet")?;
            mesh.open(peer, kind, wait).await.map_err(|error| error.to_string())
        })
    }
}

impl Addresses for Meshed {
    fn addresses(&self) -> Vec<(NodeId, Vec<SocketAddr>)> {
        self.0.get().map(Mesh::known_addresses).unwrap_or_default()
    }
}
