"""What `vespiary-pipeline` does, a module for each job: session and options in, a result out."""
