#include "launch.h"

#include <stdexcept>
#include <string>

#include "xpu_sim/finding.h"

namespace specdec::xpu {

void check_launch(int status) {
  if (status == xpu_sim::ok && xpu_sim::finding_count() == 0) return;
  std::string message = status == xpu_sim::refused ? "the launch was refused"
                        : status == xpu_sim::ended ? "the launch was ended early"
                                                   : "the launch has findings";
  for (const xpu_sim::Finding& finding : xpu_sim::take_findings()) message += "\n" + xpu_sim::to_text(finding);
  throw std::runtime_error(message);
}

}  // namespace specdec::xpu
