#include "../kernels/launch.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "xpu_sim/finding.h"

namespace specdec::xpu {

void check_launch(int status) {
  const std::vector<xpu_sim::Finding> findings = xpu_sim::take_last_findings();
  if (status == xpu_sim::ok && findings.empty()) return;
  std::string message = status == xpu_sim::refused ? "the launch was refused"
                        : status == xpu_sim::ended ? "the launch was ended early"
                                                   : "the launch has findings";
  for (const xpu_sim::Finding& finding : findings) message += "\n" + xpu_sim::to_text(finding);
  throw std::runtime_error(message);
}

}  // namespace specdec::xpu
