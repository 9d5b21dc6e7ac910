"""What a site does next: decisions about runs, and the executor that carries them out."""
