"""`equipoise doctor`: a check for each thing of this host. All that they write is scratch, and removed."""
