"""What the process that confines a program asks of the kernel: namespaces or Landlock around it, and how much it uses."""
