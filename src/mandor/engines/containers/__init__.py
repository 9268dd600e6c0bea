"""What the engines that run containers share: labels, images, failures, and the order of things in each verb."""
