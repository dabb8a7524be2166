"""What runs Equipoise on machines: units, monitoring, and the lab."""
