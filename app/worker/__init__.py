"""What every Faust worker needs: its start and end, the transport, and which partitions it owns."""
