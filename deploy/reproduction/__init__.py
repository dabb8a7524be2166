"""The studies that Equipoise is built on, figure by figure: what they published beside what comes out here."""
